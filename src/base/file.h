#pragma once

// Files as imago reads them: whole, read-only, and only if they are regular files.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace imago {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Closes it now; false, with errno set, if the system reports an error. Empty afterwards in any case.
  bool close() noexcept;

 private:
  int fd_ = -1;  // -1: empty
};

enum class Reading : std::uint8_t {
  automatic,  ///< mapped, but eager on network disks, where a fault in the middle of work may wait or fail
  mapped,     ///< pages come in when touched. Another process that shortens the file ends ours with SIGBUS
  eager,      ///< copied to memory at once
};

/// The bytes of a regular file. Move-only; the bytes stay where they are when the object moves.
class MappedFile {
 public:
  /// Throws IoError, with the path and what the system said, for whatever cannot be read: also folders, pipes, devices.
  static MappedFile open(const std::string& path, Reading reading = Reading::automatic);

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept {
    return is_mapped() ? std::span(mapping_.get(), mapping_.get_deleter().size) : std::span(copy_);
  }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(bytes().data()), bytes().size()}; }
  bool is_mapped() const noexcept { return mapping_ != nullptr; }

 private:
  struct Unmap {
    std::size_t size;
    void operator()(const std::byte* begin) const noexcept;
  };

  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<std::byte> copy_;                      // the bytes when they are not mapped
  std::unique_ptr<const std::byte, Unmap> mapping_;  // when they are
};

/// Asks the system to bring in the pages of mapped files that `bytes` lie in, and does not wait for them.
/// Does nothing for memory that does not belong to a MappedFile.
void prefetch_pages(std::span<const std::byte> bytes) noexcept;
/// Takes those pages off this process: whoever touches them again finds them in the page cache or on disk. Converting a
/// model larger than memory stays small this way. Returns false and does nothing for memory that is not mapped.
bool release_pages(std::span<const std::byte> bytes) noexcept;

/// IoError for `path` with the text of `error`: "cannot open: No such file or directory".
[[noreturn]] void throw_system_error(std::string_view path, std::string_view attempt, int error);

}  // namespace imago
