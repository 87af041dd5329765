#include "files/tensor_stream.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/checked.h"
#include "imago/error.h"

namespace imago::files {

TensorStream::TensorStream(const std::string& path, std::vector<Due> tensors, std::size_t alignment)
    : file_(path), tensors_(std::move(tensors)), alignment_(alignment) {}

void TensorStream::pad() {
  const std::uint64_t end = checked_align_up<std::uint64_t>(file_.size(), alignment_, "the file");
  file_.write(std::string(end - file_.size(), '\0'));
}

void TensorStream::skip_complete() {
  while (due_ < tensors_.size() && written_ == tensors_[due_].bytes) {
    pad();
    ++due_;
    written_ = 0;
  }
}

void TensorStream::write_header(std::string_view header) {
  file_.write(header);
  pad();
}

void TensorStream::write(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  skip_complete();
  if (due_ == tensors_.size()) throw UsageError(fmt::format("all tensors are written, and '{}' comes on top", name));
  const Due& due = tensors_[due_];
  if (due.name != name) throw UsageError(fmt::format("tensor '{}' comes where '{}' is due", name, due.name));
  if (bytes.size() > due.bytes - written_) {
    throw UsageError(fmt::format("tensor '{}' takes {} bytes, not {}", name, due.bytes, written_ + bytes.size()));
  }
  file_.write(bytes);
  written_ += bytes.size();
}

void TensorStream::commit() {
  skip_complete();
  if (due_ != tensors_.size()) {
    throw UsageError(fmt::format("{} of the {} bytes of tensor '{}' are written", written_, tensors_[due_].bytes,
                                 tensors_[due_].name));
  }
  file_.commit();
}

}  // namespace imago::files
