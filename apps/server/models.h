#pragma once

// The models of a server: one that is given, or those of a folder, loaded when a request names them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imago/engine.h"
#include "imago/lm.h"

namespace imago::server {

/// What a model is now; a metamorphosis changes it.
struct ModelFacts {
  struct Role {
    std::string role, type;
    std::size_t matrices = 0;
    std::uint64_t weights = 0, bytes = 0;
  };
  std::string type;
  std::uint64_t bytes = 0;
  std::vector<Role> roles;  ///< in the order of the model; one for each type of a role
  std::size_t morphs = 0;   ///< that can be undone
};

/// A model under its name, ready for requests.
class ServedModel {
 public:
  /// `chat_template`: instead of the model's; a model without one that can be used gets ChatML. Throws as Engine, and
  /// as ChatTemplate::parse for the one that is given.
  ServedModel(std::string name, std::string path, LanguageModel model, const EngineOptions& options,
              const std::string& chat_template = {});

  const std::string& name() const noexcept { return name_; }
  /// What a metamorphosis changes of it is told by `facts`.
  const LanguageModel& model() const noexcept { return *model_; }
  ModelFacts facts() const;
  /// Between two steps of the engine. Throw as LanguageModel::morph and undo.
  MorphedMatrices morph(std::string_view pattern, Format type);
  MorphedMatrices undo();
  /// Throws UnsupportedError if there is none.
  const Tokenizer& tokenizer() const { return model_->require_tokenizer(); }
  Engine& engine() noexcept { return engine_; }
  const std::string& path() const noexcept { return path_; }
  const ChatTemplate& chat_template() const noexcept { return *template_; }
  const std::string& template_source() const noexcept { return template_source_; }
  /// Why the model's own chat template is not used; empty if it is.
  const std::string& template_problem() const noexcept { return template_problem_; }

 private:
  std::string name_, path_;
  std::shared_ptr<LanguageModel> model_;
  Engine engine_;
  template <class Change>
  MorphedMatrices change(Change change);

  mutable std::mutex mutex_;
  ModelFacts facts_;
  std::string template_source_, template_problem_;
  std::optional<ChatTemplate> template_;
};

struct ModelsOptions {
  std::string path = {};        ///< path of the model that is always loaded; empty: none
  std::string name = {};        ///< that it has
  std::string folder = {};      ///< whose GGUF files and model folders can be asked for by name; empty: none
  std::size_t most_loaded = 2;  ///< besides the one of `path`
  EngineOptions engine = {};
  std::string chat_template = {};  ///< instead of those that the models have
  /// Loads a file, with its matrices in another type if one is given.
  std::function<LanguageModel(const std::string& path, std::optional<Format> type)> load;
};

/// Names are those of files, and NAME@TYPE for the same model with its matrices in another type. Safe from many
/// threads.
class Models {
 public:
  struct Listed {
    std::string name;
    std::shared_ptr<ServedModel> loaded;  ///< null: not now
    std::uint64_t file_bytes = 0;         ///< size of one that is not loaded
    std::int64_t modified = 0;            ///< its file or folder, in seconds since 1970
  };

  explicit Models(ModelsOptions options) : options_(std::move(options)) {}

  /// Loads the model that is always there, if one is given. Throws what loading throws.
  void load_first();
  /// The model of that name, loaded if need be, which takes the place of the one that was not used for longest. An
  /// empty name, and without a folder any name but NAME@TYPE, means the one that is always there. Throws ApiError: 404
  /// for an unknown name, 503 while the first model loads, or if all places are busy; what loading throws.
  std::shared_ptr<ServedModel> get(std::string_view name);
  /// Those that are loaded, and those of the folder.
  std::vector<Listed> list();
  std::vector<std::shared_ptr<ServedModel>> loaded();
  bool ready();

 private:
  struct Origin {
    std::string path;
    std::optional<Format> type;
  };
  Origin origin_of(const std::string& name) const;
  std::optional<std::string> path_in_folder(std::string_view name) const;

  const ModelsOptions options_;
  std::mutex loading_;  // one load at a time; taken before mutex_
  std::mutex mutex_;
  std::shared_ptr<ServedModel> first_;
  std::list<std::shared_ptr<ServedModel>> others_;  // most recently used first
};

/// 404.
[[noreturn]] void refuse_unknown(std::string_view name);

}  // namespace imago::server
