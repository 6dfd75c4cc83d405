// Sessions from files of compiled models, and the folder that keeps them.
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

/// Why a session of these options neither reads nor writes compiled models; empty if it may.
std::string compiling_declines(const SessionOptions& options);

/// All options that decide what the optimised graph is, as text.
std::string graph_options(const SessionOptions& options);

/// The file in the session's cache folder for the model: named after a digest of the model's description (all of its file but large
/// initializers), size, time and place of its files, the options above, the library and the processor.
/// @throws Error(io_error)
struct CacheKey {
  std::string digest, path;
};
CacheKey cache_key(const Model::Impl& model, const SessionOptions& options);

/// What a compiled model tells of the model it was made of: inputs, outputs, metadata.
std::vector<std::byte> encode_interface(const Model::Impl& model);
/// A model that is a compiled file. @throws Errors of compiled::File
std::shared_ptr<Model::Impl> open_compiled(const std::string& path);

/// @throws Error(invalid_model) unless the graph has the inputs and outputs that the model tells of: callers go by those.
void check_interface(const Model::Impl& model, const Graph& graph);

/// Binds the program once, with 1 for every extent that it does not know, so that what convolutions pack for an image is there.
void pack_for_file(exec::Plans& plans, ThreadPool* pool);

}  // namespace treadle
