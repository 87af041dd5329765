#pragma once

// Writes one batch while the next one is computed.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

namespace imago::convert {

/// A piece of the target, ready to be written: in its own buffer, or in the source.
struct Slot {
  std::string_view name;
  std::vector<std::byte> buffer;
  std::span<const std::byte> bytes;  ///< of the buffer or of the source
};

/// Pieces that are computed together and written one after the other.
struct Batch {
  std::vector<Slot> slots;
  std::vector<std::span<const std::byte>> sources;  ///< pages that are not needed once it is written
};

/// A thread that writes batches in the order they are given. There are three: one being computed, one waiting, one
/// being written. They are reused, so that buffers are allocated once.
class WriteBehind {
 public:
  using Write = std::function<void(std::string_view name, std::span<const std::byte> bytes)>;
  explicit WriteBehind(Write write);
  /// Drops what is not written yet.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  /// A batch to fill; waits for a free one. Throws what writing threw.
  Batch take();
  void give(Batch batch);
  /// Waits until everything is written. Throws what writing threw.
  void finish();

 private:
  void serve();

  Write write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Batch> waiting_, free_;
  bool writing_ = false, stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace imago::convert
