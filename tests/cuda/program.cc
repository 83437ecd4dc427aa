// A program for the stand-in device, whose operations the test knows: it prints what each call returns.
#include <cstdio>

#include <cuda_runtime_api.h>

extern "C" void standin_mark(const char* name);

static void print(const char* what, int got) { std::printf("%s %d\n", what, got); }

int main() {
  constexpr std::size_t kBytes = 1 << 20;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  void* device;
  print("malloc", cudaMalloc(&device, kBytes));
  print("too much", cudaMalloc(&device, std::size_t{1} << 40));
  print("peek", cudaGetLastError());
  int numbers[4] = {1, 2, 3, 4};
  int back[4] = {};
  standin_mark("copies");
  cudaMemcpyAsync(device, numbers, sizeof numbers, cudaMemcpyHostToDevice, stream);
  cudaMemcpy2DAsync(back, 4, device, 8, 4, 2, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  print("second", back[1]);
  cudaMemsetAsync(device, 0, kBytes, stream);
  cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost);
  print("cleared", back[0]);
  standin_mark("capture");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaMemsetAsync(device, 0, kBytes, stream);
  print("malloc while capturing", cudaMalloc(&device, kBytes));
  print("wait while capturing", cudaStreamSynchronize(stream));
  print("copy while capturing", cudaMemcpy(back, back + 2, 8, cudaMemcpyHostToHost));
  cudaStreamEndCapture(stream, &graph);
  standin_mark("replay");
  cudaGraphInstantiate(&executable, graph, 0);
  print("replay", cudaGraphLaunch(executable, stream));
  print("wait", cudaStreamSynchronize(stream));
  standin_mark("end");
  print("unknown kernel", cudaLaunchKernel(numbers, dim3(1), dim3(1), nullptr, 0, stream));
}
