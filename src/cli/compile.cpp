// Implements the command `treadle compile`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "compiled/file.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct CompileOptions {
  std::string model, output;
  SessionOptions session;
  bool verify = false, json = false;
};

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

int verify(const CompileOptions& options) {
  const compiled::File file(options.model);
  file.verify();
  // Creates a session as a test, because checksums cannot tell if this machine's kernels can read the packed weights in the file.
  Session session(options.model, options.session);
  if (options.json) {
    show_json(nlohmann::json{{"file", options.model},
                             {"bytes", file.size_bytes()},
                             {"blocks", file.num_blocks()},
                             {"intact", true},
                             {"machine", compiled::machine_identity()}});
    return 0;
  }
  show("{}: {:.1f} MB in {} blocks, all as they were written; {}\n", options.model, megabytes(file.size_bytes()), file.num_blocks(),
       compiled::machine_identity());
  return 0;
}

int compile(const CompileOptions& options) {
  if (options.verify) return verify(options);
  SessionOptions session = options.session;
  session.compiled_model_filepath = options.output;
  if (session.compiled_model_filepath.empty())
    session.compiled_model_filepath = std::filesystem::path(options.model).replace_extension(".treadle").string();
  Session made(options.model, session);
  const auto bytes = std::filesystem::file_size(session.compiled_model_filepath);
  if (options.json)
    show_json(nlohmann::json{{"output", session.compiled_model_filepath}, {"bytes", bytes}});
  else
    show("{}: {:.1f} MB\n", session.compiled_model_filepath, megabytes(bytes));
  return 0;
}

}  // namespace

Command add_compile(CLI::App& app) {
  app.description("Write the optimised model with packed weights, for sessions that start at once");
  auto options = std::make_shared<CompileOptions>();
  app.footer(
      "The file has the optimised graph, folded constants and packed weights; sessions map it. It runs wherever an ONNX file runs, and "
      "results are the same bits.\n"
      "  treadle compile model.onnx                      # model.treadle\n"
      "  treadle compile model.onnx -o fast.treadle --option free_dimension_overrides=batch=8\n"
      "  treadle compile --verify fast.treadle           # reads every byte; exit status 1 if one was changed\n"
      "  treadle run fast.treadle\n"
      "It belongs to this version of the library and this processor's instruction sets; sessions refuse it elsewhere.\n"
      "It holds the weights. The ONNX file is needed to fetch values other than the outputs, to train, or to compile again.\n"
      "SessionOptions.cache_dir manages such files for you (docs/compiled-models.md).");
  app.add_option("model", options->model, "ONNX file; with --verify a compiled model")->required();
  app.add_option("-o,--output", options->output, "File to write; by default the model's name with .treadle");
  app.add_flag("--verify", options->verify,
               "Check a compiled model: every block against its checksum, and that a session can be made of it");
  app.add_flag("--json", options->json, "Print JSON");
  add_session_options(app, options->session);
  return [options, &app] {
    GivenOptions(app).need(!options->verify, "no --verify, which writes no file", {"--output"});
    return compile(*options);
  };
}

}  // namespace treadle::cli
