// What a sealed object may hold: anything in its own namespace, local names anywhere.

namespace imago::kernels::avx2 {

struct Lane {
  float value;
  float get() const noexcept;
};
float Lane::get() const noexcept { return value; }

template <class T>
T twice(T value) noexcept {
  return value + value;
}
template float twice<float>(float) noexcept;

int count_calls() noexcept {
  static int calls = 0;
  return ++calls;
}

}  // namespace imago::kernels::avx2

namespace {
int hidden(int value) noexcept { return value * 3; }
}  // namespace

namespace imago::kernels::avx2 {
int triple(int value) noexcept { return hidden(value); }
}  // namespace imago::kernels::avx2
