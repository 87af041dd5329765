#pragma once

// What llama.cpp gets out of reference/lm, from the README there: b21e4de on x86 with VNNI, llama-quantize --pure, then
// llama-perplexity --kl-divergence on eval.txt with windows of 512 and a float16 cache.

#include <string_view>

namespace imago::bench {

struct LlamaFigures {
  std::string_view type;
  double perplexity, divergence;
};

inline constexpr LlamaFigures kLlamaPlain[] = {
    {"f16", 9.3621, 0.000001},   {"bf16", 9.3627, 0.000018}, {"q8_0", 9.3679, 0.000499},   {"q6_k", 9.3696, 0.003223},
    {"q5_k", 9.4368, 0.010140},  {"q5_1", 9.4556, 0.010396}, {"q5_0", 9.4559, 0.013078},   {"q4_k", 9.5498, 0.036593},
    {"q4_1", 9.7068, 0.044479},  {"q4_0", 9.7084, 0.053613}, {"iq4_nl", 9.5767, 0.040120}, {"q3_k", 10.4949, 0.170110},
    {"q2_k", 17.7839, 0.821724}, {"tq2_0", 1.8e6, 12.88},
};
/// With an importance matrix from calibration.txt.
inline constexpr LlamaFigures kLlamaImportance[] = {
    {"q4_k", 9.5787, 0.035356}, {"q4_0", 9.6457, 0.049489}, {"q3_k", 10.4219, 0.159076}, {"q2_k", 15.0915, 0.652749}};

}  // namespace imago::bench
