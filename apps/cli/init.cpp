// imago init: fresh weights for an architecture.

#include "command.h"

namespace imago::cli {

namespace {

struct InitCommand {
  std::string spec, output;
  std::uint64_t seed = 0;
  bool json = false;
};

void init(const InitCommand& options) {
  check_network_output(options.output);
  Network network = load_network(options.spec);
  blame(options.spec, [&] {
    network.check();  // before memory is taken for settings that make no network
    network.initialize(options.seed);
  });
  save_network(network, options.output);
  if (options.json) {
    return print_json({{"output", options.output}, {"parameters", network.parameters()}, {"seed", options.seed}});
  }
  print(fmt::format("{} fresh weights from seed {}\nwritten to {}\n", format_count(network.parameters()), options.seed,
                    printable(options.output)));
}

}  // namespace

Command add_init(CLI::App& program) {
  CLI::App* command = program.add_subcommand("init", "Give an architecture fresh weights");
  const auto options = std::make_shared<InitCommand>();
  command
      ->add_option("SPEC", options->spec, "An architecture; of a network with weights, all are replaced by fresh ones")
      ->required();
  add_file(*command, "-o,--output", options->output, "The network: .json, .entity, .safetensors or .gguf")->required();
  add_seed(*command, options->seed, "The same seed gives the same weights on every machine (default: 0)");
  add_json(*command, options->json);
  command->footer(
      "Examples:\n  imago init architecture.json -o net.json --seed 7\n"
      "  imago init trained.json -o untrained.entity");
  return {command, [options] { init(*options); }};
}

}  // namespace imago::cli
