#pragma once

#include "imago/system.h"

namespace imago::testing {

/// Computes with one thread while it lives: small layers are not worth a second one, least of all on a machine that
/// runs other tests beside this one.
class OneThread {
 public:
  OneThread() { set_thread_count(1); }
  ~OneThread() { set_thread_count(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = thread_count();
};

}  // namespace imago::testing
