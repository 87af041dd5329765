#pragma once

// What data files hold: tensors by name in safetensors and GGUF files, examples in datasets. Files of networks and of
// whole models are in imago/files.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "imago/format.h"
#include "imago/numeric.h"

namespace imago {

// ---- kinds of files

/// The format of a file or folder, by its content; its name is not considered.
enum class FileForm : std::uint8_t { gguf, safetensors, checkpoint, architecture, entity, huggingface };

/// As `imago inspect` prints it: "gguf", "checkpoint".
std::string_view name(FileForm form) noexcept;

/// Throws IoError if it cannot be read; FormatError, saying what it seems to be instead, if it is none of these.
FileForm detect_form(const std::string& path);

// ---- safetensors

/// Element types of safetensors files.
enum class SafetensorsType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f4,  ///< two per byte, the first in the low bits
};

/// As files spell it: "F32", "BOOL".
std::string_view name(SafetensorsType type) noexcept;
int bits(SafetensorsType type) noexcept;

/// One tensor of an open file.
struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  ///< in the file's memory: valid as long as the SafetensorsFile
  std::uint64_t offset = 0;          ///< of the bytes in the file
};

/// A safetensors file, checked as a whole when it is opened: every offset, every size, no overlap, no hole, no tail.
/// Tensors are views of the mapped file and cost nothing until they are read. Reading is safe from many threads.
class SafetensorsFile {
 public:
  /// `eager` copies the file to memory at once; network disks are always read so. Throws IoError, FormatError.
  static SafetensorsFile open(const std::string& path, bool eager = false);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& path() const noexcept;
  /// In the order of the data.
  std::span<const SafetensorsTensor> tensors() const noexcept;
  /// `__metadata__`, in the order of the file.
  std::span<const std::pair<std::string, std::string>> metadata() const noexcept;

  /// Null if there is none of that name.
  const SafetensorsTensor* find(std::string_view name) const noexcept;
  /// Throws FormatError if there is none of that name.
  const SafetensorsTensor& require(std::string_view name) const;

  /// The elements as float32, whatever their type (integers beyond 2^24 are rounded). Throws FormatError if the tensor
  /// is absent or holds what is not an element of its type.
  Tensor<float> read_float32(std::string_view name) const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// What a SafetensorsWriter is going to write.
struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::f32;
  Shape shape;
};

/// Writes a safetensors file, one tensor after the other: memory is needed for one piece at a time. The file appears at
/// the commit; before it, the old one stays.
class SafetensorsWriter {
 public:
  /// The entries in any order; they are written in the order of their names. Throws UsageError for a name that comes
  /// twice, is empty, not UTF-8, or "__metadata__", ShapeError for F4 with an odd count, IoError.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                    std::vector<std::pair<std::string, std::string>> metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// In the order in which their bytes are due.
  std::span<const SafetensorsEntry> entries() const noexcept;
  /// Bytes of tensor `name`, all or the next piece of them. Throws UsageError if another tensor is due or there are
  /// more bytes than it has, IoError.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void write(std::string_view name, std::span<const float> values) { write(name, std::as_bytes(values)); }
  /// Throws UsageError if a tensor is not complete, IoError.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A whole file at once, float32 tensors by name.
void save_safetensors(const std::string& path, std::span<const std::pair<std::string, Tensor<float>>> tensors);

// ---- GGUF

/// Types of GGUF metadata; the numbers are those of the files.
enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// "u8", "bool", "string".
std::string_view name(GgufType type) noexcept;

/// An array of GGUF metadata, all elements of one type, never arrays: no reader of such files is known. Arrays of an
/// open file are views of it; arrays made by `of` own their elements. Copies share them.
class GgufArray {
 public:
  GgufArray() = default;
  /// Numbers. T is one of the types that GgufValue holds.
  template <class T>
  static GgufArray of(std::span<const T> values);
  static GgufArray of_strings(std::span<const std::string> values);

  GgufType type() const noexcept { return type_; }
  std::size_t size() const noexcept { return size_; }
  /// Numbers and bools as the file has them: little-endian, one after the other, without alignment. Else empty.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Elements of an array of strings, of any content. Else empty.
  std::span<const std::string_view> strings() const noexcept;
  /// The numbers. Throws UsageError if the elements are of another type than T.
  template <class T>
  std::vector<T> values() const;
  /// Elements of any integer type. Throws UsageError for other types, ShapeError for an element beyond int64.
  std::vector<std::int64_t> integers() const;

  /// Whether type and elements are the same, bit by bit.
  bool operator==(const GgufArray& other) const noexcept;

 private:
  friend struct GgufMaker;

  GgufType type_ = GgufType::u8;
  std::size_t size_ = 0;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const std::vector<std::string_view>> strings_;
  std::shared_ptr<const std::vector<std::byte>> owned_;  // what bytes_ or strings_ view, unless it is a file
};

/// One value of GGUF metadata. Strings and arrays of an open file are views of it; those given by callers are owned.
class GgufValue {
 public:
  /// In the order of GgufType.
  using Any = std::variant<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t, std::int32_t, float,
                           bool, std::string_view, GgufArray, std::uint64_t, std::int64_t, double>;

  /// A number or an array: its type is the type of the value. REQUIRES: T is an alternative of Any, no string_view.
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_same_v<T, GgufArray>) GgufValue(T value)
      : value_(std::in_place_type<T>, std::move(value)) {}       // NOLINT: implicit on purpose
  GgufValue(std::string text);                                   // NOLINT: implicit on purpose
  GgufValue(const char* text) : GgufValue(std::string(text)) {}  // NOLINT: implicit on purpose

  GgufType type() const noexcept { return static_cast<GgufType>(value_.index()); }
  const Any& any() const noexcept { return value_; }

  /// Any integer type. None for other types and beyond int64.
  std::optional<std::int64_t> integer() const noexcept;
  /// Any integer or float type, rounded to float64.
  std::optional<double> number() const noexcept;
  std::optional<bool> boolean() const noexcept;
  std::optional<std::string_view> string() const noexcept;
  /// Null if it is none.
  const GgufArray* array() const noexcept { return std::get_if<GgufArray>(&value_); }

  /// Whether type and content are the same, bit by bit.
  bool operator==(const GgufValue& other) const noexcept;

 private:
  friend struct GgufMaker;

  Any value_;
  std::shared_ptr<const std::string> owned_;  // what a string_view views, unless it is a file
};

struct GgufMetadata {
  std::string key;
  GgufValue value;
};

/// A tensor type of GGUF files. `values` elements take `bytes` bytes.
struct GgufTensorType {
  std::uint32_t id = 0;
  std::string_view name;
  int values = 1;
  int bytes = 0;
  std::optional<Format> format;  ///< none: a type that imago does not compute with
};

/// All of them, those included that imago can only name and copy.
std::span<const GgufTensorType> gguf_tensor_types() noexcept;
/// Throws UnsupportedError for formats that GGUF does not have.
const GgufTensorType& gguf_tensor_type(Format format);

/// One tensor of an open file.
struct GgufTensor {
  std::string name;
  GgufTensorType type;
  Shape shape;                       ///< outermost first; GGUF itself lists the innermost first
  std::span<const std::byte> bytes;  ///< in the file's memory: valid as long as the GgufFile
  std::uint64_t offset = 0;          ///< of the bytes in their file
  std::string_view file;             ///< the path of that file: the part, of a split model
};

/// A model in GGUF version 2 or 3, in one file or split into several (`NAME-00001-of-00003.gguf`). All of it but the
/// values of the tensors is checked when it is opened: keys, names, types, sizes, no overlap. Tensors are views of the
/// mapped files and cost nothing until they are read. Reading is safe from many threads.
class GgufFile {
 public:
  /// The path of a file, or of any part of a split one: the others must lie beside it. `eager` copies the files to
  /// memory at once; network disks are always read so. Throws IoError, FormatError.
  static GgufFile open(const std::string& path, bool eager = false);
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& path() const noexcept;
  std::uint32_t version() const noexcept;
  std::uint32_t alignment() const noexcept;
  /// Files it consists of; one unless it is split.
  std::size_t parts() const noexcept;
  /// Bytes of all files together.
  std::uint64_t file_bytes() const noexcept;
  /// In the order of the file; of split ones, that of the first part.
  std::span<const GgufMetadata> metadata() const noexcept;
  /// In the order of the file, part after part.
  std::span<const GgufTensor> tensors() const noexcept;
  /// Harmless oddities, a sentence each, such as bytes that belong to no tensor.
  std::span<const std::string> notes() const noexcept;

  /// Null if there is none of that key or name.
  const GgufValue* find(std::string_view key) const noexcept;
  const GgufTensor* find_tensor(std::string_view name) const noexcept;

  // These throw FormatError, naming the key, if it is absent, of another kind or out of range.
  const GgufValue& require(std::string_view key) const;
  std::int64_t require_integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  double require_number(std::string_view key) const;
  std::string_view require_string(std::string_view key) const;
  const GgufArray& require_array(std::string_view key, GgufType elements) const;
  /// `general.architecture`, which is not empty.
  std::string_view architecture() const;
  /// Throws FormatError if there is none of that name.
  const GgufTensor& require_tensor(std::string_view name) const;

  /// The elements as float32, whatever their type. Throws FormatError if the tensor is absent, UnsupportedError, naming
  /// tensor and type, for types without a format.
  Tensor<float> read_float32(std::string_view name) const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// What a GgufWriter is going to write.
struct GgufEntry {
  std::string name;
  GgufTensorType type;
  Shape shape;  ///< outermost first, at most four extents
};

/// Writes a GGUF file of version 3, one tensor after the other: memory is needed for one piece at a time. The file
/// appears at the commit; before it, the old one stays.
class GgufWriter {
 public:
  static constexpr std::uint32_t kAlignment = 32;  ///< of files that do not state theirs

  /// Metadata and tensors are written in the order given. `general.alignment` is the writer's: it gets the value of
  /// `alignment`, a power of two from 8. For a part of a split file, state `split.no`, `split.count` (u16) and
  /// `split.tensors.count` (i32). Throws UsageError for keys and names that come twice, are empty, too long, not UTF-8
  /// or hold control characters, ShapeError for rows that are not whole blocks and more than four extents, IoError.
  GgufWriter(const std::string& path, std::vector<GgufMetadata> metadata, std::vector<GgufEntry> entries,
             std::uint32_t alignment = kAlignment);
  GgufWriter(GgufWriter&&) noexcept;
  ~GgufWriter();

  /// In the order in which their bytes are due.
  std::span<const GgufEntry> entries() const noexcept;
  /// Bytes of tensor `name`, all or the next piece of them. Throws UsageError if another tensor is due or there are
  /// more bytes than it has, IoError.
  void write(std::string_view name, std::span<const std::byte> bytes);
  void write(std::string_view name, std::span<const float> values) { write(name, std::as_bytes(values)); }
  /// Throws UsageError if a tensor is not complete, IoError.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "model", 0, 3: "model-00001-of-00003.gguf".
std::string gguf_part_path(std::string_view prefix, std::size_t index, std::size_t count);

// ---- datasets

/// Examples: row i of `x` belongs to row i of `y` (first extents are equal).
struct Dataset {
  Tensor<float> x, y;
  std::size_t size() const noexcept { return x.shape().rank() == 0 ? 0 : x.shape()[0]; }
};
struct DatasetOptions {
  std::size_t target_columns = 1;  ///< CSV: the last columns, which are targets
  std::string labels = {};         ///< IDX: file of the labels; empty: found beside the images by its usual name
  bool one_hot = false;            ///< class numbers of one column become one-hot rows
};
/// By content: safetensors with `x` and `y`, CSV (a header line is found), IDX images, scaled to [0, 1] if they are
/// bytes, with IDX labels. Compressed files are refused. Throws FormatError, IoError.
Dataset load_dataset(const std::string& path, const DatasetOptions& options = {});

enum class TextUnit : std::uint8_t { character, byte };

/// The bytes or UTF-8 characters of a text, sorted; the place of each is its token id. Immutable.
class TextVocabulary {
 public:
  TextVocabulary() = default;
  /// Collects all that `text` holds. `file` is the name for errors. Throws FormatError where characters are not UTF-8.
  TextVocabulary(std::string_view text, TextUnit unit, std::string_view file = "text");

  TextUnit unit() const noexcept { return unit_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  std::span<const std::string> tokens() const noexcept { return tokens_; }
  /// Throws UsageError for what the vocabulary lacks, FormatError as the constructor.
  std::vector<int> encode(std::string_view text, std::string_view file = "text") const;
  /// Throws UsageError for ids outside the vocabulary.
  std::string decode(std::span<const int> ids) const;

 private:
  TextUnit unit_ = TextUnit::character;
  std::vector<std::string> tokens_;
};

struct TextOptions {
  std::size_t context = 64;  ///< tokens per example
  std::size_t stride = 0;    ///< tokens from the start of one example to that of the next; 0: context
  TextUnit unit = TextUnit::character;
};
/// A text to train a language model on: `x` holds `context` token ids per example, `y` the id after each of them, for
/// cross_entropy_logits.
struct TextDataset {
  Dataset data;
  TextVocabulary vocabulary;
};
/// The same of tokens that are numbered already; `unit` means nothing. Throws UsageError if they are not more than the
/// context; `file` is the name that errors give.
Dataset make_token_dataset(std::span<const int> ids, const TextOptions& options = {}, std::string_view file = "text");
/// Throws UsageError if the text is not longer than the context.
TextDataset make_text_dataset(std::string_view text, const TextOptions& options = {}, std::string_view file = "text");
TextDataset load_text_dataset(const std::string& path, const TextOptions& options = {});

}  // namespace imago
