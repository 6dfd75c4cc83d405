// Makes a session's main program: compiles the model, or loads the program from a compiled file.
#include <fmt/format.h>

#include <filesystem>

#include "core/base/logging.h"
#include "session/compile_cache.h"
#include "session/session_impl.h"
#include "treadle/error.h"

namespace treadle {

void Session::Impl::warn(const std::string& text) const {
  if (options.on_warning) return options.on_warning(text);
  TREADLE_LOG(warning, "{}", text);
}

std::shared_ptr<Executable> Session::Impl::load_main(const compiled::File& file) const {
  compiled::LoadedGraph loaded;
  {
    const LoadPhases::Phase phase("read compiled graph");
    loaded = file.read();
  }
  check_interface(model.impl(), *loaded.graph);
  auto made = finish(std::move(loaded.graph), {.restored = &loaded.states});
  for (const auto& [graph, id] : loaded.stand_ins)
    if (graph->value(id).constant.defined())
      throw Error(ErrorCode::invalid_model,
                  fmt::format("\"{}\" lacks the constant \"{}\", which is read", file.path(), graph->value(id).name));
  return made;
}

void Session::Impl::write_main(const Executable& made, const std::string& path, const std::string& key) const {
  const LoadPhases::Phase phase("write compiled model");
  pack_for_file(made.executor->plans(), pool.get());
  compiled::write(path, *made.program, key,
                  encode_interface(declared_inputs(), declared_outputs(*made.graph), declared_initializers(), model.metadata()));
}

std::shared_ptr<Executable> Session::Impl::make_main() const {
  const std::string& compiled_path = options.compiled_model_filepath;
  const std::string reason = compiling_declines(options);
  if (const auto& file = model.impl().compiled) {
    if (!reason.empty())
      throw Error(ErrorCode::not_implemented,
                  fmt::format("a session of the compiled model \"{}\" cannot be made: {}", file->path(), reason));
    // A session that sets no option affecting the graph accepts the file's graph as it is.
    const std::string wanted = graph_options(options);
    if (wanted != graph_options({}) && wanted != file->key())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("\"{}\" was compiled with other options:\n{}the session asks for:\n{}", file->path(), file->key(), wanted));
    if (!compiled_path.empty()) throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" is compiled already; copy it", file->path()));
    return load_main(*file);
  }

  bool caching = !options.cache_dir.empty();
  if (caching && (!reason.empty() || !model.impl().as_read)) {
    caching = false;
    warn(fmt::format("the session does not use the cache of compiled models: {}",
                     reason.empty() ? "the model is in memory, not a file" : reason));
  }
  if (!compiled_path.empty() && !reason.empty())
    throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" cannot be written: {}", compiled_path, reason));
  CacheKey key;
  if (caching) {
    key = cache_key(model.impl(), options);
    std::error_code ignored;
    if (compiled_path.empty() && std::filesystem::exists(key.path, ignored)) {
      try {
        const compiled::File file(key.path);
        if (file.key() != key.digest) throw Error(ErrorCode::invalid_model, "it is of another model");
        return load_main(file);
      } catch (const Error& error) {
        warn(fmt::format("the compiled model \"{}\" is not used, and made anew: {}", key.path, error.what()));
      }
    }
  }

  std::unique_ptr<Graph> graph = prepare();
  const CompiledSubgraphs compiled = optimize(*graph);
  auto made = finish(std::move(graph), {.for_file = caching || !compiled_path.empty()});
  if (!compiled_path.empty()) write_main(*made, compiled_path, graph_options(options));
  if (caching) {
    try {
      std::filesystem::create_directories(options.cache_dir);
      write_main(*made, key.path, key.digest);
    } catch (const Error& error) {
      warn(fmt::format("no compiled model was written to \"{}\": {}", options.cache_dir, error.what()));
    } catch (const std::filesystem::filesystem_error& error) {
      warn(fmt::format("no compiled model was written to \"{}\": {}", options.cache_dir, error.what()));
    }
  }
  return made;
}

}  // namespace treadle
