// Add two arrays on GPU 0 with the kernel of an export, which CMakeLists.txt builds into a library.

#include "driver.hpp"

#include <kernels/kernels.h>

#include <cstdio>
#include <stdexcept>
#include <vector>

namespace {

void check(int status)
{
    if (status)
        throw std::runtime_error(kernels_last_error());
}

void run()
{
    const std::int64_t shape[] = {16, 512};
    const std::size_t bytes = 16 * 512 * sizeof(float);
    Driver driver;
    pallasc_tensor arrays[3]; // x, y, and the result
    for (pallasc_tensor &array : arrays) {
        std::vector<float> values(16 * 512, 1.5f);
        Address address = driver.allocate(bytes);
        driver.to_device(address, values.data(), bytes);
        array = {reinterpret_cast<void *>(address), "f32", shape, nullptr, 2};
    }

    // Needed before the first launch: loads the kernel, and returns the size of its temporaries.
    std::size_t size = 0;
    check(kernels_add_prepare(0, arrays, 3, &size));
    void *workspace = size ? reinterpret_cast<void *>(driver.allocate(size)) : nullptr;

    check(kernels_add(0, arrays, 3, workspace, size, nullptr));

    // Copying the result back waits for the kernel.
    std::vector<float> values(16 * 512);
    driver.from_device(values.data(), reinterpret_cast<Address>(arrays[2].data), bytes);
    std::printf("add: the first element is %g\n", values.front());
}

} // namespace

int main()
{
    try {
        run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
