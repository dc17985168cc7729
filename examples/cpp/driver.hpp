// The functions of the driver that allocate and fill memory. Programs that have the CUDA toolkit
// include <cuda.h> instead, and link with -lcuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

using Address = std::uint64_t;

class Driver {
public:
    Driver() : library(dlopen("libcuda.so.1", RTLD_NOW))
    {
        if (!library)
            throw std::runtime_error("no NVIDIA driver here");
        void *context = nullptr;
        call<int(unsigned)>("cuInit", 0u);
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
