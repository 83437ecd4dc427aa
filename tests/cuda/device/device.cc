#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "log.h"

namespace standin {
namespace {

constexpr int kKiB = 1024;
constexpr int kMiB = 1024 * kKiB;

constexpr Device kDevices[] = {
    {80, "stand-in A100", 108, 2048, 32, 164 * kKiB, 163 * kKiB, 40 * kMiB},
    {86, "stand-in A10", 72, 1536, 16, 100 * kKiB, 99 * kKiB, 6 * kMiB},
    {89, "stand-in L40S", 142, 1536, 24, 100 * kKiB, 99 * kKiB, 96 * kMiB},
    {90, "stand-in H100", 132, 2048, 32, 228 * kKiB, 227 * kKiB, 50 * kMiB},
    {100, "stand-in B200", 148, 2048, 32, 228 * kKiB, 227 * kKiB, 126 * kMiB},
    {120, "stand-in RTX PRO 6000", 188, 1536, 24, 100 * kKiB, 99 * kKiB, 128 * kMiB},
};

long long number_from(const char* variable, long long otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

const Device& find_device() {
  const long long wanted = number_from("STANDIN_CUDA_SM", 90);
  for (const Device& candidate : kDevices) {
    if (candidate.capability == wanted) return candidate;
  }
  std::fprintf(stderr, "STANDIN_CUDA_SM=%lld: no such device is known; 80, 86, 89, 90, 100, 120 are\n", wanted);
  std::abort();
}

}  // namespace

const Device& device() {
  static const Device& found = find_device();
  return found;
}

std::size_t memory_size() {
  static const auto bytes = static_cast<std::size_t>(number_from("STANDIN_CUDA_MEMORY_MB", 8192)) * kMiB;
  return bytes;
}

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* number) {
  *number = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int number) {
  return number == 0 ? cudaSuccess : refuse("cudaSetDevice", "there is one device", cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    default: return "an error of the stand-in device";
  }
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const Device& own = device();
  *properties = {};
  std::strncpy(properties->name, own.name, sizeof properties->name - 1);
  properties->major = own.capability / 10;
  properties->minor = own.capability % 10;
  properties->totalGlobalMem = memory_size();
  properties->totalConstMem = 64 * kKiB;
  properties->multiProcessorCount = own.multiprocessors;
  properties->maxThreadsPerMultiProcessor = own.threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = own.blocks_per_multiprocessor;
  properties->sharedMemPerMultiprocessor = own.shared_per_multiprocessor;
  properties->sharedMemPerBlockOptin = own.shared_per_block;
  properties->sharedMemPerBlock = kSharedByDefault;
  properties->l2CacheSize = own.l2;
  properties->regsPerBlock = properties->regsPerMultiprocessor = kRegisters;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = kThreadsPerBlock;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->managedMemory = properties->unifiedAddressing = 1;
  properties->cooperativeLaunch = properties->memoryPoolsSupported = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, number);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = properties.maxThreadsDim[0]; break;
    case cudaDevAttrMaxGridDimX: *value = properties.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = properties.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(properties.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(properties.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(properties.sharedMemPerMultiprocessor); break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = properties.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = properties.regsPerMultiprocessor; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = properties.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = properties.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrCooperativeLaunch: *value = properties.cooperativeLaunch; break;
    case cudaDevAttrMemoryPoolsSupported: *value = properties.memoryPoolsSupported; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    default:  // to be added above, with its true value, once a library asks for it
      return refuse("cudaDeviceGetAttribute", std::to_string(attribute) + " is not known", cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

}  // extern "C"
