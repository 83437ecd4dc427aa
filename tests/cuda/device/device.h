// The device that is stood in for, as the environment names it:
//   STANDIN_CUDA_SM         compute capability without its point: 80, 86, 89, 90, 100 or 120 (90)
//   STANDIN_CUDA_MEMORY_MB  memory in MiB (8192)
//   STANDIN_CUDA_LOG        file that the log is appended to (none)
//   STANDIN_CUDA_REJECT     N: every Nth token that the runtime reads back differs from its draft (0: none does)
#pragma once

#include <cstddef>

namespace standin {

// What CUDA's programming guide and the vendor's data sheets say of one GPU of each compute capability.
struct Device {
  int capability;
  const char* name;
  int multiprocessors;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int shared_per_multiprocessor;  // bytes
  int shared_per_block;           // bytes that a kernel may ask for
  int l2;                         // bytes
};

// Bytes of shared memory that a kernel gets without asking.
constexpr int kSharedByDefault = 48 * 1024;
constexpr int kThreadsPerBlock = 1024;
constexpr int kRegisters = 65536;

const Device& device();
std::size_t memory_size();
std::size_t memory_used();

// Fill memory with zeros, device memory without touching it: a cache pool is most of a GPU, and stays untouched.
void clear(void* start, std::size_t bytes);

}  // namespace standin
