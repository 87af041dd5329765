#include "kernels/cuda/cublas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cassert>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "imago/error.h"

namespace imago::kernels::cuda {

namespace {

/// What NVIDIA recommends for Hopper; the best kernels of older chips need no more.
constexpr std::size_t kWorkspaceBytes = 32 << 20;

/// The functions of cuBLASLt, loaded by name.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  std::string problem;

  Library() {
    void* const library = open();
    if (library == nullptr) {
      problem =
          "cannot load cuBLASLt, neither libcublasLt.so.13 nor .12: install the libraries of the CUDA toolkit (Debian "
          "and "
          "Ubuntu: libcublas-13-0), or add their folder to LD_LIBRARY_PATH";
      return;
    }
    const auto find = [&]<class F>(F& function, const char* name) {
      function = reinterpret_cast<F>(dlsym(library, name));
      if (function == nullptr && problem.empty()) problem = std::string("this cuBLASLt is too old: it lacks ") + name;
    };
    find(create, "cublasLtCreate");
    find(matmul, "cublasLtMatmul");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(desc_create, "cublasLtMatmulDescCreate");
    find(desc_set, "cublasLtMatmulDescSetAttribute");
    find(layout_create, "cublasLtMatrixLayoutCreate");
    find(layout_set, "cublasLtMatrixLayoutSetAttribute");
    find(preference_create, "cublasLtMatmulPreferenceCreate");
    find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(status_string, "cublasLtGetStatusString");
  }

  static void* open() {
    // Tests of what happens without the library set this.
    if (std::getenv("IMAGO_NO_CUBLAS") != nullptr) return nullptr;
    std::vector<std::string> folders = {""};
    if (const char* path = std::getenv("CUDA_PATH")) folders.push_back(std::string(path) + "/lib64/");
    folders.push_back("/usr/local/cuda/lib64/");
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      for (const std::string& folder : folders) {
        if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      }
    }
    return nullptr;
  }
};

const Library& library() {
  static const Library& library = *new Library;  // never closed: static objects may use it until the very end
  return library;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(std::string("cuBLASLt, ") + what + ": " + library().status_string(status));
}

/// A product as cuBLASLt sees it, in its column-major terms: D[m][n] = op(A)[m][k] · op(B)[k][n].
struct Problem {
  GemmType type = GemmType::float32;
  std::uint64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  int batch = 1;
  std::int64_t a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
  /// Alignment of the operands in bytes: a kernel that loads 16 bytes at once needs aligned ones. Set by `run`.
  std::uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;
  int device = 0;  ///< set by `run`
  auto operator<=>(const Problem&) const = default;
};

/// The kernel chosen for a problem, and the descriptions it is called with. Kept for the life of the process.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

cudaDataType_t data_type(GemmType type) {
  return type == GemmType::float16 ? CUDA_R_16F : type == GemmType::bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtMatrixLayout_t layout(cudaDataType_t type, std::uint64_t rows, std::uint64_t cols, std::int64_t stride,
                              int batch, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(library().layout_create(&made, type, rows, cols, stride), "layout");
  if (batch > 1) {
    check(library().layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch), "batch count");
    check(library().layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride),
          "batch stride");
  }
  return made;
}

Plan make_plan(const Problem& p, cublasLtHandle_t handle) {
  const Library& lt = library();
  Plan plan;
  const auto compute = p.type == GemmType::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(lt.desc_create(&plan.operation, compute, CUDA_R_32F), "description");
  const cublasOperation_t op_a = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(lt.desc_set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a), "transpose");
  check(lt.desc_set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b), "transpose");
  const cudaDataType_t type = data_type(p.type);
  plan.a = layout(type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_stride, p.batch, p.a_batch_stride);
  plan.b = layout(type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_stride, p.batch, p.b_batch_stride);
  plan.c = layout(CUDA_R_32F, p.m, p.n, p.c_stride, p.batch, p.c_batch_stride);

  cublasLtMatmulPreference_t preference = nullptr;
  check(lt.preference_create(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    check(lt.preference_set(preference, name, &value, sizeof value), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      lt.heuristic(handle, plan.operation, plan.a, plan.b, plan.c, plan.c, preference, 1, &found, &count);
  lt.preference_destroy(preference);
  check(status, "choice of a kernel");
  if (count == 0) throw DeviceError("cuBLASLt has no kernel for this product");
  plan.algorithm = found.algo;
  return plan;
}

/// Handles by device, plans by problem, work space by stream, since streams run concurrently. A new stream at the
/// address of an old one inherits its work space.
struct State {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Problem, Plan> plans;
  std::map<CUstream_st*, imago::cuda::Array<std::byte>> workspaces;
};

std::uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

void run(Problem p, const void* a, const void* b, float* c, float alpha, float beta, Stream& stream) {
  if (!cublas_problem().empty()) throw DeviceError(cublas_problem());
  static State& state = *new State;
  p.a_alignment = alignment(a);
  p.b_alignment = alignment(b);
  p.c_alignment = alignment(c);
  imago::cuda::make_current(*stream.device());
  p.device = imago::cuda::number_of(*stream.device());
  const std::lock_guard lock(state.mutex);
  cublasLtHandle_t& handle = state.handles[p.device];
  if (handle == nullptr) check(library().create(&handle), "start");
  auto plan = state.plans.find(p);
  if (plan == state.plans.end()) plan = state.plans.emplace(p, make_plan(p, handle)).first;
  auto& workspace = state.workspaces[stream.handle()];
  workspace.reserve(*stream.device(), kWorkspaceBytes);
  const Plan& chosen = plan->second;
  check(library().matmul(handle, chosen.operation, &alpha, a, chosen.a, b, chosen.b, &beta, c, chosen.c, c, chosen.c,
                         &chosen.algorithm, workspace.data(), kWorkspaceBytes, stream.handle()),
        "product");
}

std::int64_t stride_or(std::size_t stride, std::size_t length) {
  return static_cast<std::int64_t>(stride == 0 ? length : stride);
}

}  // namespace

const std::string& cublas_problem() { return library().problem; }

void gemm(const Gemm& g, Stream& stream) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  assert(g.k != 0);
  // Row-major C is its transpose in column-major terms: Cᵀ = op(B)ᵀ · op(A)ᵀ, and B as it lies is already transposed.
  const Problem p{.m = g.n,
                  .n = g.m,
                  .k = g.k,
                  .transpose_a = g.transpose_b,
                  .transpose_b = g.transpose_a,
                  .a_stride = stride_or(g.b_stride, g.transpose_b ? g.k : g.n),
                  .b_stride = stride_or(g.a_stride, g.transpose_a ? g.m : g.k),
                  .c_stride = stride_or(g.c_stride, g.n),
                  .batch = static_cast<int>(g.batch),
                  .a_batch_stride = static_cast<std::int64_t>(g.b_batch_stride),
                  .b_batch_stride = static_cast<std::int64_t>(g.a_batch_stride),
                  .c_batch_stride = static_cast<std::int64_t>(g.c_batch_stride)};
  run(p, g.b, g.a, g.c, g.alpha, g.beta, stream);
}

void weight_product(const WeightProduct& w, Stream& stream) {
  if (w.rows == 0 || w.tokens == 0) return;
  const Problem p{.type = w.type,
                  .m = w.rows,
                  .n = w.tokens,
                  .k = w.cols,
                  .transpose_a = true,
                  .a_stride = stride_or(w.w_stride, w.cols),
                  .b_stride = stride_or(w.x_stride, w.cols),
                  .c_stride = stride_or(w.y_stride, w.rows)};
  run(p, w.w, w.x, w.y, w.alpha, w.beta, stream);
}

}  // namespace imago::kernels::cuda
