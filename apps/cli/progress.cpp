#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "output.h"

namespace imago::cli {

namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

std::string minutes_and_seconds(double seconds) {
  const int whole = static_cast<int>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(bool quiet, std::size_t done_before)
    : visible_(!quiet && is_terminal(STDERR_FILENO)), done_before_(done_before) {}

Progress::~Progress() {
  if (drawn_) std::fputs(kEraseLine, stderr);
}

bool Progress::is_due(std::size_t done, std::size_t total) const {
  if (!visible_ || total == 0) return false;
  return !drawn_ || done >= total || std::chrono::steady_clock::now() - drawn_at_ >= std::chrono::milliseconds(50);
}

void Progress::show(std::size_t done, std::size_t total, std::string_view label, Unit unit) {
  if (!is_due(done, total)) return;
  const auto now = std::chrono::steady_clock::now();
  drawn_at_ = now;
  constexpr std::size_t kBarWidth = 24;
  const std::size_t filled = kBarWidth * done / total;
  const auto amount = [&](std::size_t count) {
    return unit == Unit::bytes ? format_bytes(count) : std::to_string(count);
  };
  std::string line = fmt::format("{}[{}{}] {}/{}", kEraseLine, std::string(filled, '='),
                                 std::string(kBarWidth - filled, ' '), amount(done), amount(total));
  if (done > done_before_) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done - done_before_) / elapsed;
    const std::string speed =
        unit == Unit::bytes ? format_bytes(static_cast<std::uint64_t>(rate)) : fmt::format("{:.1f}", rate);
    line += fmt::format("  {}/s, {} left", speed, minutes_and_seconds(static_cast<double>(total - done) / rate));
  }
  line += fmt::format("  {}", label);
  std::fputs(line.c_str(), stderr);
  drawn_ = true;
}

void PhasedProgress::operator()(std::string_view phase, std::size_t done, std::size_t total) {
  if (!progress_ || phase != phase_) {
    phase_ = phase;
    progress_.emplace(quiet_);
  }
  progress_->show(done, total, phase_);
}

}  // namespace imago::cli
