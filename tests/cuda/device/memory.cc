// Memory and copies. Device memory is the host's, mapped without being touched: a copy moves its bytes, so that what
// the host writes and reads back without a kernel in between is right.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"
#include "log.h"
#include "streams.h"

namespace standin {
namespace {

using Address = const char*;
using Regions = std::map<Address, std::size_t>;

struct Memory {
  std::mutex mutex;
  Regions device;
  Regions pinned;
  std::size_t used = 0;
};

// Never destroyed: libraries still free memory while the process ends.
Memory& memory() {
  static auto* const created = new Memory;
  return *created;
}

bool holds(const Regions& regions, const void* pointer) {
  const auto address = static_cast<Address>(pointer);
  auto after = regions.upper_bound(address);
  if (after == regions.begin()) return false;
  const auto& [start, size] = *--after;
  return address < start + size;
}

cudaMemoryType kind_of(const void* pointer) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  if (holds(memory().device, pointer)) return cudaMemoryTypeDevice;
  return holds(memory().pinned, pointer) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
}

const char* place(const void* pointer) {
  switch (kind_of(pointer)) {
    case cudaMemoryTypeDevice: return "device";
    case cudaMemoryTypeHost: return "pinned";
    default: return "host";
  }
}

Line& describe(Line& line, const char* kind, const void* from, const void* to, std::size_t bytes, const void* caller) {
  line.add("kind", kind).add("from", place(from)).add("to", place(to)).add("bytes", static_cast<long long>(bytes));
  return line.from(caller);
}

}  // namespace

std::size_t memory_used() {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  return memory().used;
}

namespace {

void fill(void* to, int value, std::size_t bytes) {
  if (value == 0) {
    clear(to, bytes);
  } else {
    std::memset(to, value, bytes);
  }
}

}  // namespace

void clear(void* start, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  auto* const from = static_cast<char*>(start);
  char* const end = from + bytes;
  const auto aligned = [](const char* at) { return reinterpret_cast<std::uintptr_t>(at) / kPage * kPage; };
  auto* const first = reinterpret_cast<char*>(aligned(from + kPage - 1));
  auto* const last = reinterpret_cast<char*>(aligned(end));
  if (first >= last || kind_of(start) != cudaMemoryTypeDevice) {
    std::memset(start, 0, bytes);
    return;
  }
  std::memset(from, 0, static_cast<std::size_t>(first - from));
  madvise(first, static_cast<std::size_t>(last - first), MADV_DONTNEED);  // the next access finds zeros
  std::memset(last, 0, static_cast<std::size_t>(end - last));
}

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (strictly_capturing()) {
    return refuse("cudaMalloc", "a stream is being captured", cudaErrorStreamCaptureUnsupported);
  }
  const std::lock_guard<std::mutex> lock(memory().mutex);
  if (memory().used + bytes > memory_size()) {
    // No refusal: the runtime's arena asks for twice what it had, and for less where that is not left.
    Line("allocation failed").add("bytes", static_cast<long long>(bytes));
    return set_last_error(cudaErrorMemoryAllocation);
  }
  const std::size_t size = bytes == 0 ? 1 : bytes;
  void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return refuse("cudaMalloc", "the host has no memory", cudaErrorMemoryAllocation);
  memory().device[static_cast<Address>(mapped)] = size;
  memory().used += size;
  *pointer = mapped;
  Line("allocation").add("bytes", static_cast<long long>(size)).add("used", static_cast<long long>(memory().used));
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto found = memory().device.find(static_cast<Address>(pointer));
  if (found == memory().device.end()) return refuse("cudaFree", "no such allocation", cudaErrorInvalidValue);
  munmap(pointer, found->second);
  memory().used -= found->second;
  Line("free").add("bytes", static_cast<long long>(found->second));
  memory().device.erase(found);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = static_cast<cudaMemPool_t>(std::calloc(1, 1));
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  std::free(pool);
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *static_cast<unsigned long long*>(value) = 0;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned int) {
  *pointer = std::calloc(1, bytes == 0 ? 1 : bytes);
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pinned[static_cast<Address>(*pointer)] = bytes;
  Line("pinned allocation").add("bytes", static_cast<long long>(bytes));
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  memory().pinned.erase(static_cast<Address>(pointer));
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = memory_size();
  *free = *total - memory_used();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = kind_of(pointer);
  void* const address = const_cast<void*>(pointer);
  if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = address;
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = address;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (strictly_capturing()) {
    return refuse("cudaMemcpy", "a stream is being captured", cudaErrorStreamCaptureImplicit);
  }
  Line line("copy");
  describe(line, "synchronous", from, to, bytes, __builtin_return_address(0));
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  Line line("copy");
  describe(line, "asynchronous", from, to, bytes, __builtin_return_address(0)).add(stream);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  Line line("copy");
  describe(line, "2d", from, to, width * height, __builtin_return_address(0)).add(stream);
  for (std::size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}

// Asked for by XQA's attention kernels alone, for the shared memory that each needs: a 4-byte number of the cubin, which
// nothing reads here. It is answered with one that fits every device.
cudaError_t cudaMemcpyFromSymbol(void* to, const void*, std::size_t bytes, std::size_t, cudaMemcpyKind) {
  Line("symbol").add("bytes", static_cast<long long>(bytes));
  std::memset(to, 0, bytes);
  constexpr int kSharedMemory = 90000;
  if (bytes == sizeof kSharedMemory) std::memcpy(to, &kSharedMemory, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (strictly_capturing()) {
    return refuse("cudaMemset", "a stream is being captured", cudaErrorStreamCaptureImplicit);
  }
  Line("memset").add("bytes", static_cast<long long>(bytes)).from(__builtin_return_address(0));
  fill(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Line("memset").add("bytes", static_cast<long long>(bytes)).from(__builtin_return_address(0)).add(stream);
  fill(to, value, bytes);
  return cudaSuccess;
}

}  // extern "C"
