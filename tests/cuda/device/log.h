// The log: one JSON object a line, one line an operation that the host asked the device for.
#pragma once

#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

namespace standin {

// One line of the log, written as a whole when the object goes out of scope: Line("memset").add("bytes", n);
class Line {
 public:
  explicit Line(std::string_view operation);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  Line& add(std::string_view key, std::string_view value);
  Line& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  Line& add(std::string_view key, long long value);
  Line& add(std::string_view key, dim3 value);
  // Where the operation goes: the stream, and whether it is only recorded there, for a graph.
  Line& add(cudaStream_t stream);
  // Who asks for it: the library that an address lies in, a caller's or a kernel's.
  Line& from(const void* address);

 private:
  std::string text_;
};

// Log an operation that a real device would not take, and return the error that it would give.
cudaError_t refuse(std::string_view operation, std::string_view why, cudaError_t error);

}  // namespace standin
