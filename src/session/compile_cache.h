// Saves compiled models to files. Also manages the cache folder of such files, so that later sessions need not compile a model again.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "compiled/file.h"
#include "session/model.h"
#include "treadle/session.h"

namespace treadle {
namespace exec {
class Plans;
}

/// Returns the reason why a session with these options neither reads nor writes compiled models; empty if it does.
std::string compiling_declines(const SessionOptions& options);

/// Returns the options that affect the optimized graph, as text. They are part of the key of a compiled model.
std::string graph_options(const SessionOptions& options);

/// Identifies a model's compiled file in the session's cache folder. The digest covers the model's description (the whole file except large
/// initializers), the size, modification time and location of its files, graph_options(), the library's build and the processor.
/// @throws Error(io_error)
struct CacheKey {
  std::string digest, path;
};
CacheKey cache_key(const Model::Impl& model, const SessionOptions& options);

/// Encodes what a session declares, and the model's metadata, for storage in the compiled file.
std::vector<std::byte> encode_interface(const std::vector<ValueInfo>& inputs, const std::vector<ValueInfo>& outputs,
                                        const std::vector<ValueInfo>& overridable, const ModelMetadata& metadata);
/// Opens a compiled file as a model.
/// @throws the errors of compiled::File
std::shared_ptr<Model::Impl> open_compiled(const std::string& path);

/// Checks that the graph's inputs and outputs agree with those declared in the file, on which callers rely.
/// @throws Error(invalid_model) if they do not
void check_interface(const Model::Impl& model, const Graph& graph);

/// Binds the program once, with 1 for every unknown extent, so that convolutions pack their weights before the file is written.
void pack_for_file(exec::Plans& plans, ThreadPool* pool);

}  // namespace treadle
