#include <algorithm>
#include <cmath>
#include <numbers>

#include "imago/train.h"
#include "train/names.h"

namespace imago {

namespace {

constexpr std::pair<ScheduleKind, std::string_view> kSchedules[] = {
    {ScheduleKind::constant, "constant"},
    {ScheduleKind::cosine, "cosine"},
};

}  // namespace

std::string_view name(ScheduleKind kind) noexcept { return name_in(kSchedules, kind); }

ScheduleKind parse_schedule(std::string_view text) { return parse_in(kSchedules, text, "schedule"); }

float Schedule::at(std::uint64_t step, std::uint64_t total) const noexcept {
  if (step < warmup_steps) {
    return static_cast<float>(static_cast<double>(rate) * static_cast<double>(step + 1) /
                              static_cast<double>(warmup_steps));
  }
  if (kind == ScheduleKind::constant) return rate;
  const double length = total > warmup_steps ? static_cast<double>(total - warmup_steps) : 1;
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  const double last = static_cast<double>(final_fraction);
  const double share = last + (1 - last) * (1 + std::cos(std::numbers::pi * done)) / 2;
  return static_cast<float>(static_cast<double>(rate) * share);
}

}  // namespace imago
