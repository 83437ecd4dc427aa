// cuBLAS: matrix products are logged with their sizes. Its headers are in no small package, so the functions are
// declared here, enumerations as the integers that they are.

#include <driver_types.h>

extern "C" void standin_product(const char* name, cudaStream_t stream, int m, int n, int k, int batch, int type,
                                int compute);

struct Handle {
  cudaStream_t stream = nullptr;
  int math_mode = 0;
};

extern "C" {

int cublasCreate_v2(Handle** handle) {
  *handle = new Handle;
  return 0;
}

int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return 0;
}

int cublasSetStream_v2(Handle* handle, cudaStream_t stream) {
  handle->stream = stream;
  return 0;
}

int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return 0;
}

int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return 0;
}

const char* cublasGetStatusName(int) { return "stand-in status"; }

const char* cublasGetStatusString(int) { return "stand-in status"; }

int cublasGemmEx(Handle* handle, int, int, int m, int n, int k, const void*, const void*, int type, int, const void*, int,
                 int, const void*, void*, int, int, int compute, int) {
  standin_product("cublasGemmEx", handle->stream, m, n, k, 1, type, compute);
  return 0;
}

int cublasGemmStridedBatchedEx(Handle* handle, int, int, int m, int n, int k, const void*, const void*, int type, int,
                               long long, const void*, int, int, long long, const void*, void*, int, int, long long,
                               int batch, int compute, int) {
  standin_product("cublasGemmStridedBatchedEx", handle->stream, m, n, k, batch, type, compute);
  return 0;
}

int cublasGemmBatchedEx(Handle* handle, int, int, int m, int n, int k, const void*, const void* const*, int type, int,
                        const void* const*, int, int, const void*, void* const*, int, int, int batch, int compute, int) {
  standin_product("cublasGemmBatchedEx", handle->stream, m, n, k, batch, type, compute);
  return 0;
}

constexpr int kFloat = 0;          // CUDA_R_32F
constexpr int kComputeFloat = 68;  // CUBLAS_COMPUTE_32F

int cublasSgemm_v2(Handle* handle, int, int, int m, int n, int k, const float*, const float*, int, const float*, int,
                   const float*, float*, int) {
  standin_product("cublasSgemm", handle->stream, m, n, k, 1, kFloat, kComputeFloat);
  return 0;
}

int cublasSgemmStridedBatched(Handle* handle, int, int, int m, int n, int k, const float*, const float*, int, long long,
                              const float*, int, long long, const float*, float*, int, long long, int batch) {
  standin_product("cublasSgemmStridedBatched", handle->stream, m, n, k, batch, kFloat, kComputeFloat);
  return 0;
}

int cublasSgemmBatched(Handle* handle, int, int, int m, int n, int k, const float*, const float* const*, int,
                       const float* const*, int, const float*, float* const*, int, int batch) {
  standin_product("cublasSgemmBatched", handle->stream, m, n, k, batch, kFloat, kComputeFloat);
  return 0;
}

}  // extern "C"
