// A template that is accepted renders, or says why not, within its bounds.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/lm.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  static const std::vector<ChatMessage> messages = {
      {"system", "Be brief."}, {"user", "Hi \xc3\xa9"}, {"assistant", "<think>x</think>Hello"}, {"user", "\xff\n"}};
  static const ChatTemplate::Variables variables{
      "<s>", "</s>", true, "26 Jul 2024", {{"tools", R"([{"function": {"name": "f", "n": [1, 2.5, null]}}])"}}};
  try {
    const ChatTemplate chat = ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
    if (chat.render(messages, variables).size() > (16u << 20)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
