// What the driver's own library says of the device, to programs that ask it rather than the runtime.
#include <cstddef>
#include <cstring>

#include <cuda.h>
#include <cuda_runtime_api.h>

extern "C" {

CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) { return static_cast<CUresult>(cudaDriverGetVersion(version)); }

CUresult cuDeviceGetCount(int* count) { return static_cast<CUresult>(cudaGetDeviceCount(count)); }

CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  std::strncpy(name, properties.name, static_cast<std::size_t>(length) - 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  *bytes = properties.totalGlobalMem;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // The numbers of the attributes are the same on both sides.
  return static_cast<CUresult>(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "stand-in error";
  return CUDA_SUCCESS;
}

}  // extern "C"
