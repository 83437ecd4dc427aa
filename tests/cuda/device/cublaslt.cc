// cuBLASLt: matrix products are logged with the sizes that their layouts were made with.
#include <cstddef>

#include <driver_types.h>

extern "C" void standin_product(const char* name, cudaStream_t stream, int m, int n, int k, int batch, int type,
                                int compute);

struct Handle {};

struct Product {
  int compute;
};

struct Layout {
  int type;
  unsigned long long rows;
  unsigned long long columns;
};

// What a heuristic returns: an opaque algorithm, the workspace that it needs, and whether it is any good.
struct Heuristic {
  unsigned long long algorithm[8];
  std::size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

template <typename T>
int destroy(T* object) {
  delete object;
  return 0;
}

extern "C" {

int cublasLtCreate(Handle** handle) {
  *handle = new Handle;
  return 0;
}

int cublasLtDestroy(Handle* handle) { return destroy(handle); }

int cublasLtMatmulDescCreate(Product** product, int compute, int) {
  *product = new Product{compute};
  return 0;
}

int cublasLtMatmulDescDestroy(Product* product) { return destroy(product); }

int cublasLtMatrixLayoutCreate(Layout** layout, int type, unsigned long long rows, unsigned long long columns, long long) {
  *layout = new Layout{type, rows, columns};
  return 0;
}

int cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

int cublasLtMatmulPreferenceCreate(Handle** preference) { return cublasLtCreate(preference); }

int cublasLtMatmulPreferenceDestroy(Handle* preference) { return destroy(preference); }

int cublasLtMatrixTransformDescCreate(Handle** transform, int) { return cublasLtCreate(transform); }

int cublasLtMatrixTransformDescDestroy(Handle* transform) { return destroy(transform); }

int cublasLtMatmulAlgoGetHeuristic(Handle*, Product*, Layout*, Layout*, Layout*, Layout*, Handle*, int,
                                   Heuristic* results, int* count) {
  results[0] = {};
  *count = 1;
  return 0;
}

int cublasLtMatmul(Handle*, Product* product, const void*, const void*, Layout* a, const void*, Layout*, const void*,
                   const void*, Layout*, void*, Layout* d, const void*, void*, std::size_t, cudaStream_t stream) {
  const auto inner = a->rows * a->columns / (d->rows == 0 ? 1 : d->rows);
  standin_product("cublasLtMatmul", stream, static_cast<int>(d->rows), static_cast<int>(d->columns),
                  static_cast<int>(inner), 1, a->type, product->compute);
  return 0;
}

}  // extern "C"
