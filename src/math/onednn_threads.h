#pragma once

namespace imago::math {

/// While it lives, oneDNN computes on the calling thread alone: our pool does the splitting. What the host program told
/// OpenMP about this thread is put back.
class OneThread {
 public:
  OneThread() noexcept;
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;  // 0: nothing to put back
};

}  // namespace imago::math
