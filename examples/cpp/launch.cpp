// Add two arrays on GPU 0 with a kernel that pallasc compiled: ./launch add.plan
//
// Neither Python nor a CUDA toolkit is needed.

#include "driver.hpp"

#include <pallasc.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

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
