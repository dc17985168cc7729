// Add two arrays on GPU 0 with a kernel that pallasc compiled: ./launch add.plan
//
// Neither Python nor a CUDA toolkit is needed. Programs that have the toolkit include <cuda.h>
// instead of the class Driver, and link with -lcuda.

#include <pallasc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Address = std::uint64_t;

// The few functions of the driver that give and fill memory.
class Driver {
public:
    Driver() : library(dlopen("libcuda.so.1", RTLD_NOW))
    {
        if (!library)
            throw std::runtime_error("no NVIDIA driver here");
        void *context = nullptr;
        call<int(void **, int)>("cuDevicePrimaryCtxRetain", &context, 0);
        call<int(void *)>("cuCtxSetCurrent", context);
    }

    Address allocate(std::size_t bytes)
    {
        Address address = 0;
        call<int(Address *, std::size_t)>("cuMemAlloc_v2", &address, bytes);
        return address;
    }

    void to_device(Address target, const void *source, std::size_t bytes)
    {
        call<int(Address, const void *, std::size_t)>("cuMemcpyHtoD_v2", target, source, bytes);
    }

    void from_device(void *target, Address source, std::size_t bytes)
    {
        call<int(void *, Address, std::size_t)>("cuMemcpyDtoH_v2", target, source, bytes);
    }

private:
    template <typename Function, typename... Arguments>
    void call(const char *name, Arguments... arguments)
    {
        auto function = reinterpret_cast<Function *>(dlsym(library, name));
        int result = function ? function(arguments...) : 500;
        if (result)
            throw std::runtime_error(std::string(name) + " answers " + std::to_string(result));
    }

    void *library;
};

void check(int status)
{
    if (status)
        throw std::runtime_error(pallasc_last_error());
}

std::vector<char> read(const char *file)
{
    std::ifstream stream(file, std::ios::binary);
    if (!stream)
        throw std::runtime_error(std::string(file) + " cannot be read");
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void run(const char *file)
{
    std::vector<char> bytes = read(file);
    pallasc_plan *opened = nullptr;
    check(pallasc_open(bytes.data(), bytes.size(), nullptr, nullptr, &opened));
    std::unique_ptr<pallasc_plan, decltype(&pallasc_close)> plan(opened, pallasc_close);
    check(pallasc_prepare(plan.get(), 0));

    Driver driver;
    std::vector<void *> buffers;
    std::vector<float> values;
    for (std::size_t i = 0; i < pallasc_buffer_count(plan.get()); i++) {
        pallasc_array array;
        check(pallasc_buffer(plan.get(), i, &array));
        Address address = driver.allocate(array.bytes);
        values.assign(array.bytes / sizeof(float), static_cast<float>(i + 1));
        if (array.flags & PALLASC_INPUT)
            driver.to_device(address, values.data(), array.bytes);
        buffers.push_back(reinterpret_cast<void *>(address));
        std::printf("%s: %s, %zu bytes\n", array.path, array.dtype, array.bytes);
    }
    void *workspace = nullptr;
    if (std::size_t size = pallasc_workspace_bytes(plan.get()))
        workspace = reinterpret_cast<void *>(driver.allocate(size));

    check(pallasc_launch(plan.get(), 0, buffers.data(), buffers.size(), workspace, nullptr));

    // The last buffer is the result; copying it back waits for the kernel.
    driver.from_device(values.data(), reinterpret_cast<Address>(buffers.back()),
                       values.size() * sizeof(float));
    std::printf("%s: the first element is %g\n", pallasc_name(plan.get()), values.front());
}

} // namespace

int main(int count, char **arguments)
{
    if (count != 2) {
        std::fprintf(stderr, "usage: launch PLAN\n");
        return 2;
    }
    try {
        run(arguments[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
