#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "imago/error.h"

namespace imago {

namespace {

// Large enough that system calls cost nothing beside the copy, small enough for the second-level cache.
constexpr std::size_t kBufferBytes = 256 * 1024;

// Written bytes are handed to the disk in steps of this size, so that the sync at the end finds little left to do.
constexpr std::uint64_t kWriteBehindBytes = 16 * 1024 * 1024;

// ---- the register of temporary names

/// A handler may run at any instruction, so a name counts only between `open` and `free`, and is never half there.
struct Slot {
  enum : int { kFree, kClaimed, kOpen };
  std::atomic<int> state{kFree};
  char name[PATH_MAX];
};
constexpr int kSlots = 64;
Slot slots[kSlots];

int register_name(const std::string& name) noexcept {
  if (name.size() >= PATH_MAX) return -1;
  for (int i = 0; i < kSlots; ++i) {
    int expected = Slot::kFree;
    if (!slots[i].state.compare_exchange_strong(expected, Slot::kClaimed)) continue;
    std::memcpy(slots[i].name, name.c_str(), name.size() + 1);
    slots[i].state.store(Slot::kOpen, std::memory_order_release);
    return i;
  }
  return -1;
}

void forget_name(int slot) noexcept {
  if (slot >= 0) slots[slot].state.store(Slot::kFree, std::memory_order_release);
}

// ---- names

/// The absolute path with links followed; empty, with errno set, if nothing is there.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : "";
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::uint64_t random_number(const std::string& path) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) throw_system_error(path, "no random numbers", errno);
  return number;
}

}  // namespace

void remove_unfinished_files() noexcept {
  const int saved = errno;
  for (Slot& slot : slots) {
    if (slot.state.load(std::memory_order_acquire) == Slot::kOpen) ::unlink(slot.name);
  }
  errno = saved;
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(real_path(path)) {
  if (target_.empty()) target_ = path_;  // a new file
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw IoError(path_, "cannot write: it is a folder");
  if (exists && !S_ISREG(status.st_mode)) throw IoError(path_, "cannot write: it is not a regular file");
  directory_ = real_path(folder_of(target_));
  if (directory_.empty()) throw_system_error(path_, "cannot write to its folder", errno);
  buffer_.reserve(kBufferBytes);
  temporary_ = fmt::format("{}/.imago-{:016x}.part", directory_ == "/" ? "" : directory_, random_number(path_));
  slot_ = register_name(temporary_);  // before the file exists: removing a name that is not there does no harm
  file_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) {
    const int error = errno;
    forget_name(slot_);
    throw_system_error(path_, "cannot write to its folder", error);
  }
  if (exists && ::fchmod(file_.get(), status.st_mode & 07777) != 0) {
    const int error = errno;
    discard();
    throw_system_error(path_, "cannot keep its permissions", error);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  file_.close();
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  temporary_.clear();
  forget_name(slot_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  assert(file_);
  size_ += bytes.size();
  if (bytes.size() >= kBufferBytes) {
    flush();
    write_now(bytes);
    return;
  }
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::flush() {
  write_now(buffer_);
  buffer_.clear();
}

void AtomicFile::write_now(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file_.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw_system_error(path_, "cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    on_file_ += static_cast<std::uint64_t>(wrote);
  }
  if (on_file_ - handed_over_ < kWriteBehindBytes) return;
  // A hint: file systems that cannot are left to the sync.
  ::sync_file_range(file_.get(), static_cast<off_t>(handed_over_), static_cast<off_t>(on_file_ - handed_over_),
                    SYNC_FILE_RANGE_WRITE);
  handed_over_ = on_file_;
}

void AtomicFile::commit() {
  assert(file_);
  flush();
  if (::fsync(file_.get()) != 0) throw_system_error(path_, "cannot write", errno);
  if (!file_.close()) throw_system_error(path_, "cannot write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_system_error(path_, "cannot replace", errno);
  temporary_.clear();
  forget_name(slot_);
  // The new name is on disk only when its folder is. File systems without that notion refuse, and have done what
  // they can.
  const UniqueFd folder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder && ::fsync(folder.get()) != 0 && errno != EINVAL && errno != EROFS) {
    throw_system_error(path_, "cannot sync its folder", errno);
  }
}

}  // namespace imago
