#include "log.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "streams.h"

namespace standin {
namespace {

// Neither the file nor the mutex is ever destroyed: libraries still free memory while the process ends.
std::FILE* file() {
  static std::FILE* const opened = [] {
    const char* path = std::getenv("STANDIN_CUDA_LOG");
    return path == nullptr ? nullptr : std::fopen(path, "a");
  }();
  return opened;
}

std::mutex& mutex() {
  static auto* const created = new std::mutex;
  return *created;
}

void quote(std::string& text, std::string_view value) {
  text += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  text += '"';
}

}  // namespace

Line::Line(std::string_view operation) : text_("{\"op\": ") { quote(text_, operation); }

Line::~Line() {
  if (file() == nullptr) return;
  text_ += "}\n";
  const std::lock_guard<std::mutex> lock(mutex());
  std::fwrite(text_.data(), 1, text_.size(), file());
  std::fflush(file());  // the last line before a crash is the one that matters
}

Line& Line::add(std::string_view key, std::string_view value) {
  text_ += ", ";
  quote(text_, key);
  text_ += ": ";
  quote(text_, value);
  return *this;
}

Line& Line::add(std::string_view key, long long value) {
  text_ += ", ";
  quote(text_, key);
  text_ += ": " + std::to_string(value);
  return *this;
}

Line& Line::add(std::string_view key, dim3 value) {
  text_ += ", ";
  quote(text_, key);
  text_ += ": [" + std::to_string(value.x) + ", " + std::to_string(value.y) + ", " + std::to_string(value.z) + "]";
  return *this;
}

Line& Line::add(cudaStream_t stream) {
  add("stream", static_cast<long long>(stream_number(stream)));
  if (record_if_capturing(stream)) text_ += ", \"captured\": true";
  return *this;
}

Line& Line::from(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return *this;
  const std::string_view path = info.dli_fname;
  return add("library", path.substr(path.rfind('/') + 1));
}

cudaError_t refuse(std::string_view operation, std::string_view why, cudaError_t error) {
  Line("refused").add("name", operation).add("why", why).add("error", static_cast<long long>(error));
  return set_last_error(error);
}

}  // namespace standin

// For the Python side, which marks where a step begins and ends, and for the libraries beside this one.
extern "C" void standin_mark(const char* name) { standin::Line("mark").add("name", name); }

extern "C" void standin_stub(const char* name) { standin::Line("stub").add("name", name); }

extern "C" void standin_product(const char* name, cudaStream_t stream, int m, int n, int k, int batch, int type,
                                int compute) {
  standin::Line("product")
      .add("name", name)
      .add("m", m)
      .add("n", n)
      .add("k", k)
      .add("batch", batch)
      .add("type", type)
      .add("compute", compute)
      .add(stream);
}
