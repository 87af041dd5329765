#include "models.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "api.h"
#include "imago/error.h"
#include "imago/format.h"

namespace imago::server {

namespace fs = std::filesystem;

namespace {

/// What most models without a template make sense of.
constexpr const char* kChatMl =
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}";

/// Tokens of a request, unless the caller says: few models go beyond, and the cache would be large.
constexpr std::size_t kUsualContext = 32768;

EngineOptions with_context(EngineOptions options, const LanguageModel& model) {
  if (options.context == 0) options.context = std::clamp<std::size_t>(model.context(), 1, kUsualContext);
  return options;
}

/// "model" of "model.gguf", the whole of a folder's name.
std::string name_of(const fs::path& path) {
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

bool is_model(const fs::directory_entry& entry) {
  std::error_code unreadable;
  if (entry.is_directory(unreadable)) return fs::exists(entry.path() / "config.json", unreadable);
  return entry.is_regular_file(unreadable) && entry.path().extension() == ".gguf";
}

std::uint64_t bytes_of(const fs::directory_entry& entry) {
  std::error_code unreadable;
  if (!entry.is_directory(unreadable)) return entry.file_size(unreadable);
  std::uint64_t sum = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(entry.path(), unreadable)) {
    if (file.is_regular_file(unreadable)) sum += file.file_size(unreadable);
  }
  return sum;
}

std::int64_t modified(const fs::path& path) {
  std::error_code unreadable;
  const fs::file_time_type time = fs::last_write_time(path, unreadable);
  if (unreadable) return 0;
  const auto since_1970 = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since_1970).count();
}

std::vector<fs::directory_entry> models_in(const std::string& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code unreadable;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable)) {
    if (is_model(entry)) found.push_back(entry);
  }
  std::ranges::sort(found, {}, [](const fs::directory_entry& entry) { return name_of(entry.path()); });
  return found;
}

}  // namespace

void refuse_unknown(std::string_view name) {
  throw ApiError(404, "not_found_error", fmt::format("there is no model '{}'; GET /v1/models lists them", name),
                 "model");
}

namespace {

ModelFacts facts_of(const LanguageModel& model) {
  ModelFacts facts{.type = std::string(model.type()), .bytes = model.bytes(), .roles = {}};
  for (const ModelMatrix& matrix : model.matrices()) {
    const auto same = [&](const ModelFacts::Role& role) {
      return role.role == matrix.role && role.type == matrix.type.name();
    };
    auto found = std::ranges::find_if(facts.roles, same);
    if (found == facts.roles.end()) {
      found = facts.roles.insert(found, {.role = matrix.role, .type = std::string(matrix.type.name())});
    }
    ++found->matrices;
    found->weights += matrix.weights;
    found->bytes += matrix.bytes;
  }
  return facts;
}

}  // namespace

ServedModel::ServedModel(std::string name, std::string path, LanguageModel model, const EngineOptions& options,
                         const std::string& chat_template)
    : name_(std::move(name)),
      path_(std::move(path)),
      model_(std::make_shared<LanguageModel>(std::move(model))),
      engine_(model_, with_context(options, *model_)),
      facts_(facts_of(*model_)),
      template_source_(chat_template) {
  if (!template_source_.empty()) {
    template_ = ChatTemplate::parse(template_source_);
    return;
  }
  if (const Tokenizer* const tokenizer = model_->tokenizer()) template_source_ = tokenizer->chat_template();
  template_problem_ = "the model has no chat template";
  if (!template_source_.empty()) {
    try {
      template_ = ChatTemplate::parse(template_source_);
      template_problem_.clear();
      return;
    } catch (const Error& error) {
      template_problem_ = error.what();
    }
  }
  template_source_ = kChatMl;
  template_ = ChatTemplate::parse(template_source_);
}

ModelFacts ServedModel::facts() const {
  const std::scoped_lock lock(mutex_);
  return facts_;
}

template <class Change>
MorphedMatrices ServedModel::change(Change change) {
  MorphedMatrices done;
  engine_.change_model([&](LanguageModel& model) {
    std::size_t morphs = facts().morphs;
    done = change(model, morphs);
    ModelFacts now = facts_of(model);
    now.morphs = morphs;
    const std::scoped_lock lock(mutex_);
    facts_ = std::move(now);
  });
  return done;
}

MorphedMatrices ServedModel::morph(std::string_view pattern, Format type) {
  return change([&](LanguageModel& model, std::size_t& morphs) {
    MorphedMatrices done = model.morph(pattern, type);
    if (!done.changed.empty()) ++morphs;
    return done;
  });
}

MorphedMatrices ServedModel::undo() {
  return change([](LanguageModel& model, std::size_t& morphs) {
    MorphedMatrices done = model.undo();
    --morphs;
    return done;
  });
}

void Models::load_first() {
  if (options_.path.empty()) return;
  const std::scoped_lock loading(loading_);
  auto made = std::make_shared<ServedModel>(options_.name, options_.path, options_.load(options_.path, std::nullopt),
                                            options_.engine, options_.chat_template);
  const std::scoped_lock lock(mutex_);
  first_ = std::move(made);
}

bool Models::ready() {
  const std::scoped_lock lock(mutex_);
  return options_.path.empty() || first_ != nullptr;
}

std::optional<std::string> Models::path_in_folder(std::string_view name) const {
  if (options_.folder.empty()) return std::nullopt;
  for (const fs::directory_entry& entry : models_in(options_.folder)) {  // names of clients never become paths
    if (name_of(entry.path()) == name) return entry.path().string();
  }
  return std::nullopt;
}

Models::Origin Models::origin_of(const std::string& name) const {
  if (const auto path = path_in_folder(name)) return {*path, std::nullopt};
  const std::size_t at = name.rfind('@');
  if (at == std::string::npos) refuse_unknown(name);
  const std::string base = name.substr(0, at);
  std::string path = options_.path;
  if (base != options_.name || path.empty()) path = path_in_folder(base).value_or("");
  if (path.empty()) refuse_unknown(name);
  try {
    return {path, parse_format(std::string_view(name).substr(at + 1))};
  } catch (const Error& error) {
    throw ApiError(404, "not_found_error", fmt::format("there is no model '{}': {}", name, error.what()), "model");
  }
}

std::shared_ptr<ServedModel> Models::get(std::string_view asked) {
  const auto find_loaded = [&]() -> std::shared_ptr<ServedModel> {
    const std::scoped_lock lock(mutex_);
    const bool means_first = asked.empty() || asked == options_.name ||
                             (options_.folder.empty() && asked.find('@') == std::string_view::npos);
    if (means_first && !options_.path.empty()) {
      if (first_ != nullptr) return first_;
      throw ApiError(503, "unavailable_error", "Loading model");
    }
    const auto found = std::ranges::find(others_, asked, [](const auto& model) { return model->name(); });
    if (found == others_.end()) return nullptr;
    others_.splice(others_.begin(), others_, found);
    return others_.front();
  };
  if (auto found = find_loaded()) return found;
  if (asked.empty()) throw ApiError(400, "invalid_request_error", "'model' is missing: several are served", "model");

  const std::scoped_lock loading(loading_);
  if (auto found = find_loaded()) return found;  // by another request, meanwhile
  const std::string name(asked);
  const Origin origin = origin_of(name);
  {
    const std::scoped_lock lock(mutex_);
    while (others_.size() >= options_.most_loaded) {
      // Only the list holds a model that no request uses.
      const auto idle =
          std::find_if(others_.rbegin(), others_.rend(), [](const auto& model) { return model.use_count() == 1; });
      if (idle == others_.rend()) {
        throw ApiError(503, "unavailable_error",
                       fmt::format("'{}' is not loaded, and all {} places for models are busy", name, others_.size()));
      }
      others_.erase(std::next(idle).base());
    }
  }
  auto made = std::make_shared<ServedModel>(name, origin.path, options_.load(origin.path, origin.type), options_.engine,
                                            options_.chat_template);
  const std::scoped_lock lock(mutex_);
  others_.push_front(made);
  return made;
}

std::vector<std::shared_ptr<ServedModel>> Models::loaded() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<ServedModel>> models;
  if (first_ != nullptr) models.push_back(first_);
  models.insert(models.end(), others_.begin(), others_.end());
  return models;
}

std::vector<Models::Listed> Models::list() {
  std::vector<Listed> listed;
  for (auto& model : loaded()) {
    listed.push_back({.name = model->name(), .loaded = model, .modified = modified(model->path())});
  }
  if (options_.folder.empty()) return listed;
  for (const fs::directory_entry& entry : models_in(options_.folder)) {
    const std::string name = name_of(entry.path());
    if (std::ranges::find(listed, name, &Listed::name) != listed.end()) continue;
    listed.push_back(
        {.name = name, .loaded = nullptr, .file_bytes = bytes_of(entry), .modified = modified(entry.path())});
  }
  return listed;
}

}  // namespace imago::server
