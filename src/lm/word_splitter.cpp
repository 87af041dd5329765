#include "lm/word_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "imago/error.h"
#include "lm/unicode_text.h"
#include "models/vocabulary_parts.h"

namespace imago::lm {

namespace {

template <auto release>
struct Free {
  template <class T>
  void operator()(T* what) const noexcept {
    release(what);
  }
};

// What an expression may use up on one word: steps, and more of them for each byte there is to look at.
constexpr std::uint32_t kLeastSteps = 10'000'000;
constexpr std::size_t kStepsPerByte = 16;
constexpr std::uint32_t kMaxHeapKib = 256 * 1024;
constexpr std::size_t kMaxPattern = 65536;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// The same expression in a form that takes linear time.
std::string linear(std::string pattern) {
  // White space at the end is looked for only where it begins.
  if (pattern == R"(\s+$)") return R"((?<!\s)\s++\z)";
  // Spaces that are cut into chunks have no line end after them, or it would have been found before the first:
  // searching for one again at each chunk finds nothing.
  constexpr std::string_view kChunks = R"(|\s*[\r\n]+|\s{512}(?!\S)|)";
  if (const std::size_t at = pattern.find(kChunks); at != std::string::npos) {
    pattern.insert(at + 1, R"((?<![^\S\r\n]))");
  }
  return pattern;
}

enum class Digits : std::uint8_t { none, groups, group_starts };

}  // namespace

struct WordSplitter::Stage {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;  // null where digits rule
  std::string pattern;
  Digits digits = Digits::none;
};

/// One call of split: the memory that matching needs.
class WordSplitter::Run {
 public:
  Run(const std::vector<Stage>& stages, const Word& word) : stages_(stages), word_(word) {}

  void cut(std::size_t stage, std::string_view piece) {
    if (piece.empty()) return;
    if (stage == stages_.size()) return word_(piece);
    if (stages_[stage].digits != Digits::none) return cut_digits(stage, piece);
    std::size_t done = 0;
    for (std::size_t from = 0; from < piece.size();) {
      if (!match(stages_[stage], piece, from)) break;
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data_.get());
      const std::size_t begin = span[0], end = span[1];
      if (begin > done) cut(stage + 1, piece.substr(done, begin - done));
      if (end > begin) cut(stage + 1, piece.substr(begin, end - begin));
      done = end;
      // An empty match is a cut; the next one must come after it.
      from = end > begin || end == piece.size() ? end : end + character_at(piece, end).bytes;
      if (end == begin && end == piece.size()) break;
    }
    cut(stage + 1, piece.substr(done));
  }

 private:
  bool match(const Stage& stage, std::string_view piece, std::size_t from) {
    if (!data_) data_.reset(pcre2_match_data_create(1, nullptr));
    if (!context_) context_.reset(pcre2_match_context_create(nullptr));
    if (!data_ || !context_) throw std::bad_alloc();
    const std::size_t steps = std::min<std::size_t>(kLeastSteps + kStepsPerByte * piece.size(), ~std::uint32_t{0});
    pcre2_set_match_limit(context_.get(), static_cast<std::uint32_t>(steps));
    pcre2_set_heap_limit(context_.get(), kMaxHeapKib);
    const auto subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(stage.code.get(), subject, piece.size(), from, PCRE2_NO_UTF_CHECK | options, data_.get(),
                         context_.get());
    };
    int found = run(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);  // which keeps its state on the heap
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found >= 0) return true;
    throw UnsupportedError(fmt::format("the pre-tokenizer's expression '{}' gives up on a piece of {} bytes: {}",
                                       stage.pattern, piece.size(), message_of(found)));
  }

  /// Numbers in groups of three, counted from their end.
  void cut_digits(std::size_t stage, std::string_view piece) {
    const bool starts_only = stages_[stage].digits == Digits::group_starts;
    std::size_t done = 0;
    std::vector<std::size_t> number;  // where its digits begin
    for (std::size_t at = 0; at < piece.size();) {
      number.clear();
      Character next = character_at(piece, at);
      while (is_digit(next.code)) {
        number.push_back(at);
        at += next.bytes;
        if (at == piece.size()) break;
        next = character_at(piece, at);
      }
      if (number.empty()) {
        at += next.bytes;
        continue;
      }
      if (!starts_only && at < piece.size() && is_word(next.code)) continue;  // no boundary: left as it is
      for (std::size_t i = 0; i < number.size(); ++i) {
        const bool begins = (number.size() - i) % 3 == 0 || (i == 0 && !starts_only);
        if (!begins) continue;
        cut(stage + 1, piece.substr(done, number[i] - done));
        done = number[i];
      }
      if (!starts_only) {
        cut(stage + 1, piece.substr(done, at - done));
        done = at;
      }
    }
    cut(stage + 1, piece.substr(done));
  }

  const std::vector<Stage>& stages_;
  const Word& word_;
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data_;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context_;
};

WordSplitter::WordSplitter(WordSplitter&&) noexcept = default;
WordSplitter::~WordSplitter() = default;

WordSplitter::WordSplitter(const std::vector<std::string>& patterns) {
  const std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_max_pattern_length(context.get(), kMaxPattern);
  for (const std::string& pattern : patterns) {
    Stage stage{.code = nullptr, .pattern = pattern};
    if (pattern == models::kDigitGroups) stage.digits = Digits::groups;
    if (pattern == models::kDigitGroupStarts) stage.digits = Digits::group_starts;
    if (stage.digits == Digits::none) {
      const std::string text = linear(pattern);
      int error = 0;
      PCRE2_SIZE at = 0;
      stage.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, context.get()));
      if (!stage.code) {
        throw UnsupportedError(fmt::format("the pre-tokenizer's expression '{}' cannot be used: {} (at {})",
                                           pattern.substr(0, 200), message_of(error), at));
      }
      // Machine code counts no steps inside its loops, so it is for expressions that are known to need few. Where the
      // machine has none, matching goes without.
      if (models::is_known_pattern(pattern)) pcre2_jit_compile(stage.code.get(), PCRE2_JIT_COMPLETE);
    }
    stages_.push_back(std::move(stage));
  }
}

void WordSplitter::split(std::string_view text, const Word& word) const { Run(stages_, word).cut(0, text); }

}  // namespace imago::lm
