// The pre-tokenizers that GGUF names: the regular expressions that cut a text into words before merging, as the models'
// own tokenizer.json files state them.

#include <algorithm>
#include <array>

#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

const std::string kGpt2(kGpt2Pattern);
const std::string kEndings = R"re((?i:'s|'t|'re|'ve|'m|'ll|'d))re";
const std::string kBreaks = R"re(\s*[\r\n]+|\s+(?!\S)|\s+)re";

/// The family of Llama 3 and Qwen 2, which differ in how many digits stay together.
std::string llama3(const std::string& digits) {
  return kEndings + R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|)re" + digits + R"re(| ?[^\s\p{L}\p{N}]+[\r\n]*|)re" + kBreaks;
}

/// The family of GPT-4o: capitals, then small letters; `endings` may follow both.
std::string capitals(const std::string& endings, const std::string& digits) {
  const std::string start = R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])re";
  const std::string rest = R"re([\p{Ll}\p{Lm}\p{Lo}\p{M}])re";
  return start + "*" + rest + "+" + endings + "|" + start + "+" + rest + "*" + endings + "|" + digits +
         R"re(| ?[^\s\p{L}\p{N}]+[\r\n/]*|)re" + kBreaks;
}

const std::string kDigit = R"re(\p{N})re";
const std::string kDigits = R"re(\p{N}+)re";
const std::string kThreeDigits = R"re(\p{N}{1,3})re";
const std::string kIdeographs = R"re([一-龥ࠀ-一가-퟿]+)re";
const std::string kKanaAndIdeographs = R"re([一-龥぀-ゟ゠-ヿ]+)re";
const std::string kUntilPunctuation = R"re( ?[^(\s|.,!?…。，、।۔،)]+)re";
const std::string kDeepseek3Words =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)re" +
    kBreaks;
const std::string kDeepseekWords =
    R"re(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-)re"
    R"re(ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ)re"
    R"re(-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)re";
const std::string kDeepseekPunctuation = R"re(\s?[!-/:-~！-／：-～‘-‟　-。]+)re";
const std::string kYoutuScripts =
    R"re([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)re";

const std::vector<PreTokenizer>& table() {
  // Where several rows have the same expressions, the first of fitting `ignore_merges` names them in GGUF.
  static const std::vector<PreTokenizer> rows = {
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "trillion",
        "granite-docling", "exaone4"},
       {kGpt2}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
       {llama3(kThreeDigits)},
       true,
       true},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {llama3(kThreeDigits)}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez", "grok-2"},
       {llama3(kDigit)}},
      {{"qwen35"},
       {kEndings + R"re(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)re" + kBreaks}},
      {{"minicpm5"}, {kThreeDigits, llama3(kDigits)}, true},
      {{"laguna"}, {R"re([^\n]+|[\n]+)re", llama3(kDigit)}},
      {{"seed-coder"}, {kEndings + R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)re" + kBreaks}},
      {{"jais-2"},
       {kEndings + R"re(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|)re"
                   R"re(\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|)re"
                   R"re(\s{1,2}(?!\S)|\s{1})re"}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"},
       {R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)re"
        R"re(\s+(?!\S)|\s+)re"}},
      // Possessive, so that a word of any length needs no memory; nothing follows that could ask for less.
      {{"exaone-moe"},
       {kEndings +
        R"re(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|)re"
        R"re(\s+(?!\S)|\s+)re"}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"}, {kDigit, kGpt2}},
      {{"falcon"}, {R"re([\p{P}\$\+<=>\^~\|`]+)re", kGpt2, "[0-9][0-9][0-9]"}},
      {{"deepseek-llm"}, {"[\r\n]", kDeepseekWords, kDeepseekPunctuation, R"re(\s+$)re", kIdeographs, kDigits}},
      {{"deepseek-coder"}, {"[\r\n]", R"re(\s?\p{L}+)re", R"re(\s?\p{P}+)re", kIdeographs, kDigit}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {kThreeDigits, kKanaAndIdeographs, kDeepseek3Words}},
      {{"youtu"}, {kYoutuScripts, capitals(kEndings + "?", kDigit)}, true},
      {{"poro-chat", "bloom", "gpt3-finnish"}, {kUntilPunctuation}},
      {{"viking"}, {kUntilPunctuation, kDigit}},
      {{"tekken"}, {capitals("", kDigit)}, true, true},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {capitals(kEndings + "?", kThreeDigits)}},
      {{"granite-embed-multi-97m"}, {capitals(kEndings + "?", kThreeDigits)}, true},
      {{"tiny_aya", "cohere2moe"}, {std::string(kDigitGroups), capitals(kEndings + "?", kThreeDigits)}},
      {{"superbpe"}, {kDigits, std::string(kDigitGroupStarts)}},
      {{"chameleon"},
       {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", R"re(([\t\n]|    |  ))re", kDigit,
        R"re([\p{P}!-/:-@\[-`{-~])re", kGpt2},
       false,
       true},
      {{"default"}, {R"re([\p{P}\$\+<=>\^~\|]+)re", kGpt2, kDigits, "[0-9][0-9][0-9]"}},
  };
  return rows;
}

/// Line ends as escapes: files have them either way.
std::string escaped(const std::string& pattern) {
  std::string out;
  for (const char letter : pattern) {
    out += letter == '\r' ? "\\r" : letter == '\n' ? "\\n" : std::string(1, letter);
  }
  return out;
}

}  // namespace

const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept {
  for (const PreTokenizer& row : table()) {
    if (std::ranges::find(row.names, name) != row.names.end()) return &row;
  }
  return nullptr;
}

std::string_view name_of_patterns(std::span<const std::string> patterns, bool ignore_merges) {
  const auto fits = [&](const PreTokenizer& row) {
    return row.ignore_merges == ignore_merges && std::ranges::equal(row.patterns, patterns, {}, escaped, escaped);
  };
  const auto row = std::ranges::find_if(table(), fits);
  return row == table().end() ? std::string_view() : row->names.front();
}

const std::vector<std::string>* pre_tokenizer_patterns(std::string_view name) noexcept {
  const PreTokenizer* row = find_pre_tokenizer(name);
  return row == nullptr ? nullptr : &row->patterns;
}

const std::vector<std::string>& patterns_of(const Vocabulary& vocabulary) noexcept {
  const std::vector<std::string>* named = pre_tokenizer_patterns(vocabulary.pre_tokenizer);
  return vocabulary.patterns.empty() && named != nullptr ? *named : vocabulary.patterns;
}

bool is_known_pattern(std::string_view pattern) noexcept {
  return std::ranges::any_of(
      table(), [&](const PreTokenizer& row) { return std::ranges::find(row.patterns, pattern) != row.patterns.end(); });
}

std::vector<std::string_view> pre_tokenizer_names() {
  std::vector<std::string_view> names;
  for (const PreTokenizer& row : table()) names.insert(names.end(), row.names.begin(), row.names.end());
  std::ranges::sort(names);
  return names;
}

}  // namespace imago::models
