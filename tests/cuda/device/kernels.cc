// Kernels: which there are, for which GPUs they were compiled, and their launches, which are checked and logged.
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device.h"
#include "log.h"
#include "streams.h"

namespace standin {
namespace {

// The code of one compilation unit: the compute capabilities that it holds machine code or PTX for.
struct Code {
  std::vector<int> machine_code;
  std::vector<int> ptx;

  // Machine code runs on its own major version from its minor version on, PTX on anything later.
  bool runs_on(int capability) const {
    const auto same_major = [&](int own) { return own / 10 == capability / 10 && own <= capability; };
    const auto earlier = [&](int own) { return own <= capability; };
    return std::any_of(machine_code.begin(), machine_code.end(), same_major) ||
           std::any_of(ptx.begin(), ptx.end(), earlier);
  }
};

struct Kernel {
  std::string name;
  const Code* code;  // null: loaded at run time, from a file that is not read here
  int shared_allowed = kSharedByDefault;
};

// Never destroyed: libraries unregister their code while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<const void*, Kernel> kernels;
};

Registry& registry() {
  static auto* const created = new Registry;
  return *created;
}

Kernel* find(const void* handle) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().kernels.find(handle);
  return found == registry().kernels.end() ? nullptr : &found->second;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

// How nvcc embeds code: a wrapper that points at a header, which entries follow. NVIDIA documents only the wrapper
// (fatbinary_section.h); the entries' layout is what cuobjdump prints of these libraries.
struct Wrapper {
  std::int32_t magic;
  std::int32_t version;
  const char* data;
  const void* prelinked;
};

struct Header {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  // of all entries
};

struct Entry {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;  // of the code, after the entry's header
  std::uint32_t compressed_bytes;
  std::uint32_t reserved;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t capability;
};

constexpr std::int32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kHeaderMagic = 0xba55ed50;
constexpr std::uint16_t kPtx = 1;
constexpr std::uint16_t kMachineCode = 2;

const Code* read_code(const void* binary) {
  auto* const code = new Code;
  const auto* wrapper = static_cast<const Wrapper*>(binary);
  if (wrapper->magic != kWrapperMagic) return code;
  Header header;
  std::memcpy(&header, wrapper->data, sizeof header);
  if (header.magic != kHeaderMagic) return code;
  const char* at = wrapper->data + header.header_bytes;
  const char* const end = at + header.bytes;
  while (at + sizeof(Entry) <= end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    if (entry.kind == kMachineCode) code->machine_code.push_back(static_cast<int>(entry.capability));
    if (entry.kind == kPtx) code->ptx.push_back(static_cast<int>(entry.capability));
    at += entry.header_bytes + entry.bytes;
  }
  return code;
}

// The only kernels that do something: genai's own for small copies, by which it fills the inputs and reads tokens and
// drafts back. Kernels that compute leave their outputs as they were, zero for the most part; so all tokens and drafts
// are 0, and every draft is accepted, unless another token is written now and then.
constexpr int kOtherToken = 9;

template <typename T>
T argument(void** arguments, int index) {
  return *static_cast<T*>(arguments[index]);
}

void read_tokens(void** arguments) {
  static const char* const text = std::getenv("STANDIN_CUDA_REJECT");
  static const int every = text == nullptr ? 0 : std::atoi(text);
  static int written = 0;
  int* const tokens = argument<int*>(arguments, 2);  // (from, stride, to, count)
  const int count = argument<int>(arguments, 3);
  for (int i = 0; i < count; ++i) tokens[i] = every != 0 && ++written % every == 0 ? kOtherToken : 0;
}

void move_bytes(const Kernel& kernel, void** arguments) {
  const auto is = [&](const char* name) { return kernel.name.find(name) != std::string::npos; };
  if (!is("small_copy::")) return;
  if (is("::CopyBytesKernel")) {  // (from, to, bytes)
    std::memmove(argument<void*>(arguments, 1), argument<const void*>(arguments, 0), argument<std::size_t>(arguments, 2));
  } else if (is("::ZeroBytesKernel")) {  // (to, bytes)
    clear(argument<void*>(arguments, 0), argument<std::size_t>(arguments, 1));
  } else if (is("::StoreBytesKernel")) {  // (the bytes themselves, to, bytes)
    std::memcpy(argument<void*>(arguments, 1), arguments[0], argument<int>(arguments, 2));
  } else if (is("::GatherStridedInt32Kernel")) {
    read_tokens(arguments);
  }
}

cudaError_t launch(const char* kind, const void* handle, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t stream) {
  const Kernel* const kernel = find(handle);
  if (kernel == nullptr) return refuse("launch", "no such kernel", cudaErrorInvalidDeviceFunction);
  if (kernel->code != nullptr && !kernel->code->runs_on(device().capability)) {
    return refuse(kernel->name, "it is not compiled for this GPU", cudaErrorNoKernelImageForDevice);
  }
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const bool empty = threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0;
  if (empty || threads > kThreadsPerBlock || grid.y > 65535 || grid.z > 65535) {
    return refuse(kernel->name, "the grid or the block is empty or too large", cudaErrorInvalidConfiguration);
  }
  if (shared > static_cast<std::size_t>(kernel->shared_allowed)) {
    return refuse(kernel->name, std::to_string(shared) + " bytes of shared memory", cudaErrorInvalidValue);
  }
  Line("launch")
      .add("name", kernel->name)
      .add("kind", kind)
      .add("grid", grid)
      .add("block", block)
      .add("shared", static_cast<long long>(shared))
      .from(handle)
      .add(stream);
  move_bytes(*kernel, arguments);
  return cudaSuccess;
}

// The launch that <<<...>>> has set up and the kernel's stub has not yet fetched.
struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};

thread_local Configuration pending;

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(const_cast<Code*>(read_code(binary))); }

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** code, const char* handle, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels[handle] = {demangled(name), static_cast<const Code*>(*code)};
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* handle) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(handle));
  return cudaSuccess;
}

unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  pending = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = pending.grid;
  *block = pending.block;
  *shared = pending.shared;
  *static_cast<cudaStream_t*>(stream) = pending.stream;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  return launch("plain", kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void* handle, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return launch("plain", handle, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* handle, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                        cudaStream_t stream) {
  return launch("cooperative", handle, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* handle, void** arguments) {
  return launch("extended", handle, configuration->gridDim, configuration->blockDim, arguments,
                configuration->dynamicSmemBytes, configuration->stream);
}

cudaError_t cudaFuncSetAttribute(const void* handle, cudaFuncAttribute attribute, int value) {
  Kernel* const kernel = find(handle);
  if (kernel == nullptr) return refuse("cudaFuncSetAttribute", "no such kernel", cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > device().shared_per_block) {
    return refuse(kernel->name, std::to_string(value) + " bytes of shared memory", cudaErrorInvalidValue);
  }
  kernel->shared_allowed = std::max(value, kSharedByDefault);
  return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* handle) {
  const Kernel* const kernel = find(handle);
  if (kernel == nullptr) return refuse("cudaFuncGetAttributes", "no such kernel", cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = kThreadsPerBlock;
  attributes->numRegs = 64;  // the machine code would say; nothing reads it here
  attributes->binaryVersion = attributes->ptxVersion = device().capability;
  attributes->maxDynamicSharedSizeBytes = kernel->shared_allowed;
  return cudaSuccess;
}

// From threads and shared memory alone: the registers are in the machine code.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                   std::size_t shared, unsigned int) {
  constexpr int kSharedReserved = 1024;  // of each block, for the system
  const Device& own = device();
  const int by_shared = own.shared_per_multiprocessor / (static_cast<int>(shared) + kSharedReserved);
  *blocks = std::min({own.threads_per_multiprocessor / std::max(threads, 1), by_shared, own.blocks_per_multiprocessor});
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
  *library = static_cast<cudaLibrary_t>(std::calloc(1, 1));
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  std::free(library);
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  void* const handle = std::calloc(1, 1);
  const std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels[handle] = {demangled(name), nullptr};
  *kernel = static_cast<cudaKernel_t>(handle);
  return cudaSuccess;
}

// The driver's functions that libraries look up by name describe tensors for kernels, which read nothing here.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  Line("driver entry").add("name", name);
  *function = reinterpret_cast<void*>(+[] { return 0; });
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
