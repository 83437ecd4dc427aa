#include "streams.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "log.h"

// CUDA's handles are pointers to structures that the headers only declare; these are ours. A capture is shared by the
// streams that take part in it: a stream that waits for an event of a captured one joins in.
struct CUgraph_st {
  int number = 0;
  int operations = 0;
  bool open = true;     // being captured
  bool strict = false;  // no stream of the process may do what a capture cannot hold
};

using Capture = std::shared_ptr<CUgraph_st>;

struct CUstream_st {
  int number;
  Capture capture;
};

struct CUevent_st {
  Capture capture;
};

struct CUgraphExec_st {
  int number;
  int operations;
};

namespace standin {
namespace {

std::mutex mutex;  // of the captures
std::atomic<int> streams{0};
std::atomic<int> graphs{0};
std::atomic<int> strict_captures{0};
thread_local cudaError_t last_error = cudaSuccess;

CUstream_st& of(cudaStream_t stream) {
  static auto* const fallback = new CUstream_st{0, {}};
  const bool special = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return special ? *fallback : *stream;
}

// The capture that a stream or an event takes part in, or null: one that has ended is forgotten here.
template <typename Handle>
Capture open_capture(Handle& handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (handle.capture && !handle.capture->open) handle.capture.reset();
  return handle.capture;
}

}  // namespace

int stream_number(cudaStream_t stream) { return of(stream).number; }

bool record_if_capturing(cudaStream_t stream) {
  const Capture capture = open_capture(of(stream));
  if (capture) capture->operations += 1;
  return capture != nullptr;
}

bool strictly_capturing() { return strict_captures > 0; }

cudaError_t set_last_error(cudaError_t error) { return last_error = error; }

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = new CUstream_st{++streams, {}};
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (open_capture(of(stream))) {
    return refuse("cudaStreamSynchronize", "the stream is being captured", cudaErrorStreamCaptureUnsupported);
  }
  Line("sync").add("name", "stream").add(stream);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (strictly_capturing()) {
    return refuse("cudaDeviceSynchronize", "a stream is being captured", cudaErrorStreamCaptureUnsupported);
  }
  Line("sync").add("name", "device");
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Line("host function").add(stream);
  if (!open_capture(of(stream))) function(data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  event->capture = open_capture(of(stream));
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (const Capture capture = open_capture(*event)) of(stream).capture = capture;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (open_capture(*event)) {
    return refuse("cudaEventSynchronize", "the event is being captured", cudaErrorCapturedEvent);
  }
  Line("sync").add("name", "event");
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0.01F;  // whoever measures wants a time above zero
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = open_capture(of(stream)) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const auto graph = std::make_shared<CUgraph_st>();
  graph->number = ++graphs;
  graph->strict = mode != cudaStreamCaptureModeRelaxed;
  strict_captures += graph->strict;
  of(stream).capture = graph;
  Line("capture begin").add("graph", graph->number).add("stream", stream_number(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Capture capture = open_capture(of(stream));
  if (!capture) return refuse("cudaStreamEndCapture", "the stream is not being captured", cudaErrorIllegalState);
  capture->open = false;
  strict_captures -= capture->strict;
  *graph = new CUgraph_st(*capture);
  Line("capture end").add("graph", (*graph)->number).add("operations", (*graph)->operations);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->number, graph->operations};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Line("graph launch").add("graph", executable->number).add("operations", executable->operations).add(stream);
  return cudaSuccess;
}

}  // extern "C"
