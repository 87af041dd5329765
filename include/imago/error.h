#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace imago {

/// What went wrong, for callers that act on it. The text of an error is for people.
enum class ErrorKind : std::uint8_t {
  io,           ///< the system refused: file missing, unreadable, disk full
  format,       ///< a file does not keep to its format
  shape,        ///< sizes that do not fit each other
  unsupported,  ///< well-formed, but this build or this type cannot do it
  device,       ///< an accelerator failed or is absent
  usage,        ///< the caller asked for something meaningless
  diverged,     ///< training ran off to numbers that are not finite
};

/// Base of everything imago throws on purpose. The library never prints, aborts or exits; errors are values to
/// catch at the edge of the program. Copyable, safe to move between threads as std::exception_ptr.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// The operating system refused. `path` names the file; `problem` says what was tried and what the system said.
class IoError final : public Error {
 public:
  IoError(std::string_view path, std::string_view problem);
};

/// A file breaks its format at byte `offset`.
class FormatError final : public Error {
 public:
  FormatError(std::string_view file, std::uint64_t offset, std::string_view problem);
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::uint64_t offset_;
};

/// Sizes do not fit: a span of the wrong length, a row that is not a multiple of a block, a product that overflows.
class ShapeError final : public Error {
 public:
  explicit ShapeError(const std::string& what) : Error(ErrorKind::shape, what) {}
};

/// The request is clear but cannot be served by this type, build or machine.
class UnsupportedError final : public Error {
 public:
  explicit UnsupportedError(const std::string& what) : Error(ErrorKind::unsupported, what) {}
};

/// An accelerator is absent, full, or failed.
class DeviceError final : public Error {
 public:
  explicit DeviceError(const std::string& what) : Error(ErrorKind::device, what) {}
};

/// Training cannot go on: `what` ("the weights are") not finite after that many steps. A lower rate or a
/// clipped gradient may help.
class DivergedError final : public Error {
 public:
  DivergedError(std::string_view what, std::uint64_t steps);
};

/// An argument has no meaning: an unknown name, a NaN scale, a group of 33.
class UsageError final : public Error {
 public:
  explicit UsageError(const std::string& what) : Error(ErrorKind::usage, what) {}
};

}  // namespace imago
