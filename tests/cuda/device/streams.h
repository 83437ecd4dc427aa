// Streams, events and the capture of CUDA graphs. Everything is done at once, so that a stream only has to remember
// whether its operations are being recorded.
#pragma once

#include <cuda_runtime_api.h>

namespace standin {

// A small number for a stream, in the order of creation; 0 is the default stream.
int stream_number(cudaStream_t stream);

// Whether the stream is being captured; counts one more operation of the graph if so.
bool record_if_capturing(cudaStream_t stream);

// Whether a capture runs that forbids the whole process what it cannot hold: allocations, synchronous copies.
bool strictly_capturing();

// Set what cudaGetLastError returns, and return it.
cudaError_t set_last_error(cudaError_t error);

}  // namespace standin
