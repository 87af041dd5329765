// An ordinary function that code outside the kernels would call on any CPU.

namespace imago {

int everywhere(int value);
int everywhere(int value) { return value + 1; }

}  // namespace imago
