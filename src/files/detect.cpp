#include "files/detect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "files/hugging_face.h"
#include "files/safetensors.h"
#include "imago/error.h"

namespace imago {

namespace files {

namespace {

constexpr std::string_view kBlank = " \t\r\n";

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  const auto to_lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return text.size() >= lower.size() && std::ranges::equal(text.substr(0, lower.size()), lower, {}, to_lower);
}

/// Files that people take for models, by how they start.
struct Mistake {
  std::string_view start;
  std::string_view advice;
};
constexpr Mistake kMistakes[] = {
    {"version https://git-lfs.github.com/spec/", "this is a git-lfs pointer, not the file: run `git lfs pull`"},
    {"<!doctype html", "this is an HTML page, not a model: the download went wrong"},
    {"<html", "this is an HTML page, not a model: the download went wrong"},
    {"<?xml", "this is an XML text, not a model: the download went wrong"},
    {"PK\x03\x04", "this is a ZIP archive, as PyTorch writes it: convert it to safetensors first"},
    {"\x80\x02", "this is a Python pickle: convert it to safetensors first"},
    {"\x1f\x8b", "this file is compressed with gzip: unpack it first"},
    {"\x28\xB5\x2F\xFD", "this file is compressed with zstd: unpack it first"},
    {"lmgg", "this is a GGML file, which GGUF has replaced: convert it first"},
    {"tjgg", "this is a GGJT file, which GGUF has replaced: convert it first"},
    {"FUGG", "this is a GGUF file of a big-endian machine, which imago does not read"},
};

/// Empty if it is none of them.
std::string_view find_advice(std::string_view text) {
  const std::size_t first = std::min(text.find_first_not_of(kBlank), text.size());
  const std::string_view visible = text.substr(first, 64);
  for (const Mistake& mistake : kMistakes) {
    if (starts_with_ignoring_case(visible, mistake.start) || text.starts_with(mistake.start)) return mistake.advice;
  }
  return {};
}

/// True if an object at any depth has `weights` or `blocks`: a checkpoint, not an architecture.
bool has_weights(const JsonValue& value) {
  if (value.kind() == JsonKind::array) {
    for (const JsonMember& element : value.elements("an array")) {
      if (has_weights(element.value)) return true;
    }
  } else if (value.kind() == JsonKind::object) {
    for (const JsonMember& member : value.members("an object")) {
      const bool weights = member.key == "weights" || member.key == "blocks";
      if (weights && member.value.kind() == JsonKind::string && member.value.source() != "\"\"") {
        return true;
      }
      if (has_weights(member.value)) return true;
    }
  }
  return false;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

FormByStart detect_by_start(std::span<const std::byte> bytes, std::string_view path) {
  const std::string_view text = as_text(bytes);
  if (text.empty()) throw FormatError(path, 0, "the file is empty");
  if (text.starts_with(kEntityMagic)) return {.form = FileForm::entity};
  if (text.starts_with("GGUF")) return {.form = FileForm::gguf};
  if (text.size() > 8 && text[8] == '{') {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text.data(), sizeof header_bytes);
    if (header_bytes <= text.size() - 8) return {.form = FileForm::safetensors};
    // A JSON text has no zero byte among its first eight; a length below 2^56 has.
    if (header_bytes <= kMaxSafetensorsHeader) {
      throw FormatError(path, 0,
                        fmt::format("this safetensors file is cut off: its header alone has {} bytes, the file {}",
                                    header_bytes, text.size()));
    }
  }
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first != std::string_view::npos && text[first] == '{') return {.json = true};
  if (kEntityMagic.starts_with(text) || std::string_view("GGUF").starts_with(text)) {
    throw FormatError(path, text.size(), "the file is cut off in its first bytes");
  }
  refuse_mistakes(bytes, path);
  throw FormatError(path, 0, "this is none of GGUF, safetensors, checkpoint JSON and .entity");
}

void refuse_mistakes(std::span<const std::byte> bytes, std::string_view path) {
  const std::string_view advice = find_advice(as_text(bytes));
  if (!advice.empty()) throw FormatError(path, 0, advice);
}

FileForm detect_json(const JsonValue& root) {
  if (root.kind() != JsonKind::object || !root.find("layers")) {
    root.fail("this JSON is not a network: it has no `layers`");
  }
  return has_weights(root) ? FileForm::checkpoint : FileForm::architecture;
}

}  // namespace files

std::string_view name(FileForm form) noexcept {
  switch (form) {
    case FileForm::gguf: return "gguf";
    case FileForm::safetensors: return "safetensors";
    case FileForm::checkpoint: return "checkpoint";
    case FileForm::architecture: return "architecture";
    case FileForm::entity: return "entity";
    case FileForm::huggingface: break;
  }
  return "huggingface";
}

FileForm detect_form(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    if (std::filesystem::exists(path + "/config.json", error)) return FileForm::huggingface;
    files::refuse_folder(path);
  }
  const MappedFile file = MappedFile::open(path);
  const files::FormByStart start = files::detect_by_start(file.bytes(), path);
  if (!start.json) return start.form;
  const files::JsonOptions options{.max_depth = files::kMaxCheckpointJsonDepth};
  return files::detect_json(files::JsonDocument::parse(file.text(), path, options).root());
}

}  // namespace imago
