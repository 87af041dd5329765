#include "guided/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/file.h"
#include "files/gguf.h"
#include "imago/data.h"
#include "imago/error.h"

namespace imago::guided {

namespace {

std::string place(const std::string& path) { return path.empty() ? path : path + " "; }

}  // namespace

const InputStatistics* Calibration::find(std::string_view name, std::size_t expert) const noexcept {
  const auto found = matrices.find({std::string(name), expert});
  return found == matrices.end() || found->second->rows == 0 ? nullptr : found->second.get();
}

const InputStatistics* Calibration::find(std::string_view name, std::size_t expert, std::size_t columns) const {
  const InputStatistics* found = find(name, expert);
  if (found != nullptr && found->second_moments.size() != columns) {
    throw UsageError(
        fmt::format("the calibration {}has {} columns for '{}', and the matrix {}: it belongs to another model",
                    place(path), found->second_moments.size(), name, columns));
  }
  return found;
}

const InputStatistics& Calibration::require(std::string_view name, std::size_t expert, std::size_t columns) const {
  if (const InputStatistics* found = find(name, expert, columns)) return *found;
  throw UsageError(fmt::format("the calibration {}does not know '{}': it belongs to another model", place(path), name));
}

bool has_products(const std::string& path) {
  std::ifstream start(path, std::ios::binary);
  char magic[4] = {};
  if (!start.read(magic, sizeof magic) || std::string_view(magic, 4) != "GGUF") return false;
  const GgufFile file = GgufFile::open(path);
  return std::ranges::any_of(file.tensors(),
                             [](const GgufTensor& tensor) { return tensor.name.ends_with(".products"); });
}

namespace {

using files::GgufHeader;

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts", kProducts = ".products";
constexpr std::string_view kType = "imatrix";

// ---- reading

class CalibrationParser {
 public:
  CalibrationParser(std::span<const std::byte> file, const std::string& path) : path_(path) {
    if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0) {
      throw FormatError(path, 0,
                        "not a calibration: it is not a GGUF file. Convert importance matrices of the older format "
                        "(.dat) with 'llama-imatrix --in-file OLD -o NEW.gguf'");
    }
    header_ = files::parse_gguf(file, path);
  }

  Calibration parse() {
    const GgufValue* type = header_.find("general.type");
    if (type == nullptr || type->string() != kType) {
      throw FormatError(path_, 0, "a GGUF file, but not a calibration: its general.type is not 'imatrix'");
    }
    Calibration calibration;
    calibration.path = path_;
    calibration.windows = number("imatrix.chunk_count");
    calibration.context = number("imatrix.chunk_size");
    if (const GgufValue* hash = header_.find("imago.text_hash")) {
      if (const auto* value = std::get_if<std::uint64_t>(&hash->any())) calibration.text_hash = *value;
    }
    for (const std::string_view text : strings("imatrix.datasets")) calibration.texts.emplace_back(text);
    if (const GgufValue* sketch = header_.find("imago.sketch")) {
      if (sketch->array() == nullptr || sketch->array()->type() != GgufType::f32) {
        throw FormatError(path_, 0, "'imago.sketch' is not an array of f32");
      }
      calibration.sketch = sketch->array()->values<float>();
    }
    for (const GgufTensor& tensor : header_.tensors) {
      if (tensor.name.ends_with(kSums)) read_matrix(tensor, calibration);
    }
    if (calibration.matrices.empty()) throw FormatError(path_, 0, "a calibration without matrices");
    share(calibration);
    return calibration;
  }

 private:
  std::uint64_t number(std::string_view key) const {
    const GgufValue* value = header_.find(key);
    const auto found = value == nullptr ? std::optional<std::int64_t>(0) : value->integer();
    if (!found || *found < 0) throw FormatError(path_, 0, fmt::format("'{}' is not a count", key));
    return static_cast<std::uint64_t>(*found);
  }

  std::vector<std::string_view> strings(std::string_view key) const {
    const GgufValue* value = header_.find(key);
    if (value == nullptr) return {};
    if (value->array() == nullptr || (value->array()->type() != GgufType::string && value->array()->size() != 0)) {
      throw FormatError(path_, 0, fmt::format("'{}' is not an array of strings", key));
    }
    return {value->array()->strings().begin(), value->array()->strings().end()};
  }

  const GgufTensor* find(std::string_view name) const { return header_.by_name.find(name); }

  std::vector<float> floats(const GgufTensor& tensor) const {
    if (tensor.type.format != Format(DType::float32)) {
      throw FormatError(path_, tensor.offset, fmt::format("tensor '{}' is {}, not F32", tensor.name, tensor.type.name));
    }
    std::vector<float> values(tensor.shape.elements());
    files::decode_gguf(tensor, values);
    return values;
  }

  void read_matrix(const GgufTensor& sums_tensor, Calibration& calibration) const {
    const std::string name = sums_tensor.name.substr(0, sums_tensor.name.size() - kSums.size());
    const GgufTensor* counts_tensor = find(name + std::string(kCounts));
    if (counts_tensor == nullptr) {
      throw FormatError(path_, sums_tensor.offset, fmt::format("'{}' has no counts", sums_tensor.name));
    }
    const std::vector<float> sums = floats(sums_tensor), counts = floats(*counts_tensor);
    if (sums.empty() || counts.empty() || sums.size() % counts.size() != 0) {
      throw FormatError(path_, sums_tensor.offset,
                        fmt::format("'{}' has {} sums and {} counts", name, sums.size(), counts.size()));
    }
    const std::size_t columns = sums.size() / counts.size();
    std::vector<float> products;
    if (const GgufTensor* tensor = find(name + std::string(kProducts))) {
      products = floats(*tensor);
      // Both are sizes of tensors in the file, so the products cannot overflow.
      if (products.size() / columns != sums.size() || products.size() % columns != 0) {
        throw FormatError(path_, tensor->offset,
                          fmt::format("'{}' has {} products for {} columns", name, products.size(), columns));
      }
    }
    for (std::size_t expert = 0; expert < counts.size(); ++expert) {
      const auto statistics = std::make_shared<InputStatistics>();
      const float count = counts[expert];
      if (!(count >= 0) || count >= 0x1p63f || count != std::floor(count)) {
        throw FormatError(path_, counts_tensor->offset, fmt::format("'{}' counts {} inputs", name, count));
      }
      statistics->rows = static_cast<std::uint64_t>(count);
      statistics->second_moments.resize(columns);
      for (std::size_t i = 0; i < columns; ++i) {
        const float sum = sums[expert * columns + i];
        if (!(sum >= 0) || !std::isfinite(sum)) {
          throw FormatError(path_, sums_tensor.offset,
                            fmt::format("'{}' has the sum of squares {} in column {}", name, sum, i));
        }
        statistics->second_moments[i] = count == 0 ? 0 : sum / count;
      }
      const std::span<const float> own =
          std::span<const float>(products).subspan(products.empty() ? 0 : expert * columns * columns);
      statistics->products.assign(own.begin(),
                                  own.begin() + static_cast<std::ptrdiff_t>(products.empty() ? 0 : columns * columns));
      if (!std::ranges::all_of(statistics->products, [](float value) { return std::isfinite(value); })) {
        throw FormatError(path_, sums_tensor.offset, fmt::format("'{}' has products that are not finite", name));
      }
      statistics->is_table = name == kTableName;
      calibration.matrices[{name, expert}] = statistics;
    }
  }

  void share(Calibration& calibration) const {
    for (const std::string_view line : strings("imago.shared")) {
      const std::size_t equals = line.find('=');
      if (equals == std::string_view::npos) throw FormatError(path_, 0, "'imago.shared' has a line without '='");
      const std::string name(line.substr(0, equals)), as(line.substr(equals + 1));
      for (std::size_t expert = 0;; ++expert) {
        const auto one = calibration.matrices.find({name, expert}), other = calibration.matrices.find({as, expert});
        if (one == calibration.matrices.end() || other == calibration.matrices.end()) {
          if (expert == 0) {
            throw FormatError(path_, 0, fmt::format("'imago.shared' names '{}', but one of them does not exist", line));
          }
          break;
        }
        if (one->second->second_moments.size() != other->second->second_moments.size()) {
          throw FormatError(path_, 0, fmt::format("'imago.shared' names '{}', but their columns differ", line));
        }
        one->second = other->second;
      }
    }
  }

  const std::string& path_;
  GgufHeader header_;
};

// ---- writing

/// The experts of a matrix, in order; null for those never seen.
using Experts = std::vector<const InputStatistics*>;

std::map<std::string, Experts> by_name(const Calibration& calibration) {
  std::map<std::string, Experts> found;
  for (const auto& [key, statistics] : calibration.matrices) {
    Experts& experts = found[key.first];
    experts.resize(std::max(experts.size(), key.second + 1));
    experts[key.second] = statistics.get();
  }
  return found;
}

std::size_t columns_of(const Experts& experts) {
  const auto seen = std::ranges::find_if(experts, [](const auto* expert) { return expert != nullptr; });
  return (*seen)->second_moments.size();
}

bool have_products(const Experts& experts) {
  return std::ranges::any_of(experts,
                             [](const auto* expert) { return expert != nullptr && !expert->products.empty(); });
}

}  // namespace

Calibration parse_calibration(std::span<const std::byte> file, const std::string& path) {
  return CalibrationParser(file, path).parse();
}

Calibration Calibration::read(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  return parse_calibration(file.bytes(), path);
}

void Calibration::write(const std::string& to) const {
  const std::map<std::string, Experts> named = by_name(*this);
  const GgufTensorType& f32 = gguf_tensor_type(DType::float32);
  std::vector<GgufEntry> entries;
  std::vector<std::string> shared;
  std::map<Experts, std::string> first_of;
  for (const auto& [name, experts] : named) {
    const std::size_t columns = columns_of(experts);
    entries.push_back({name + std::string(kSums), f32, Shape{experts.size(), columns}});
    entries.push_back({name + std::string(kCounts), f32, Shape{experts.size(), 1}});
    const auto [first, is_first] = first_of.emplace(experts, name);
    if (!is_first) {
      shared.push_back(name + "=" + first->second);
    } else if (have_products(experts)) {
      entries.push_back({name + std::string(kProducts), f32, Shape{experts.size(), columns, columns}});
    }
  }
  std::vector<GgufMetadata> metadata = {{"general.type", std::string(kType)},
                                        {"imatrix.datasets", GgufArray::of_strings(texts)},
                                        {"imatrix.chunk_count", static_cast<std::uint32_t>(windows)},
                                        {"imatrix.chunk_size", static_cast<std::uint32_t>(context)},
                                        {"imago.text_hash", text_hash}};
  if (!sketch.empty()) metadata.push_back({"imago.sketch", GgufArray::of(std::span<const float>(sketch))});
  if (!shared.empty()) metadata.push_back({"imago.shared", GgufArray::of_strings(shared)});
  GgufWriter writer(to, std::move(metadata), std::move(entries));
  for (const auto& [name, experts] : named) {
    const std::size_t columns = columns_of(experts);
    std::vector<float> sums(experts.size() * columns), counts(experts.size());
    for (std::size_t expert = 0; expert < experts.size(); ++expert) {
      if (experts[expert] == nullptr) continue;
      counts[expert] = static_cast<float>(experts[expert]->rows);
      for (std::size_t i = 0; i < columns; ++i) {
        sums[expert * columns + i] = experts[expert]->second_moments[i] * counts[expert];
      }
    }
    writer.write(name + std::string(kSums), sums);
    writer.write(name + std::string(kCounts), counts);
    if (first_of.at(experts) != name || !have_products(experts)) continue;
    const std::vector<float> none(columns * columns);
    for (const InputStatistics* expert : experts) {
      const bool known = expert != nullptr && !expert->products.empty();
      writer.write(name + std::string(kProducts), known ? expert->products : none);
    }
  }
  writer.commit();
}

}  // namespace imago::guided
