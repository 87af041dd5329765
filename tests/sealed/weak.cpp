// A template of a shared namespace: the copy made here could replace everybody's.

namespace imago {

template <class T>
T twice(T value) noexcept {
  return value + value;
}
template float twice<float>(float) noexcept;

}  // namespace imago
