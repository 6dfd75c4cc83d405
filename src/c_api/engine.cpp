// Engines of the C ABI.
#include "treadle/engine.h"

#include <memory>
#include <vector>

#include "c_api/context.h"
#include "c_api/status.h"

using treadle::Engine;
using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::CallbackContext;
using treadle::c_api::guarded;
using treadle::c_api::require;

struct treadle_engine {
  Engine engine;
};

struct treadle_variable {
  Engine::Variable variable;
};

struct treadle_scratch {
  Engine::Scratch scratch;
};

struct treadle_random_stream {
  Engine::RandomStream stream;
};

namespace {

std::vector<Engine::Variable> list(const treadle_variable* const* variables, size_t count) {
  if (count) require(variables, "variables");
  std::vector<Engine::Variable> made;
  for (size_t i = 0; i < count; ++i) made.push_back(require(variables[i], "a variable").variable);
  return made;
}

}  // namespace

extern "C" {

treadle_status* treadle_engine_create(int naive, int32_t num_threads, treadle_engine** out) {
  return guarded([&] {
    if (num_threads < 0) throw Error(ErrorCode::invalid_argument, std::to_string(num_threads) + " threads");
    require(out, "out") = new treadle_engine{Engine({.naive = naive != 0, .num_threads = num_threads})};
  });
}

void treadle_engine_release(treadle_engine* engine) { delete engine; }

treadle_status* treadle_engine_variable(treadle_engine* engine, treadle_variable** out) {
  return guarded([&] { require(out, "out") = new treadle_variable{require(engine, "engine").engine.variable()}; });
}

void treadle_variable_release(treadle_variable* variable) { delete variable; }

uint64_t treadle_variable_version(const treadle_variable* variable) { return variable ? variable->variable.version() : 0; }

treadle_status* treadle_engine_push(treadle_engine* engine, treadle_operation operation, void* context, void (*release)(void* context),
                                    const treadle_variable* const* reads, size_t num_reads, const treadle_variable* const* writes,
                                    size_t num_writes, int32_t priority) {
  return guarded([&] {
    Engine& its = require(engine, "engine").engine;
    if (!operation) throw Error(ErrorCode::invalid_argument, "the operation is NULL");
    const std::vector<Engine::Variable> read = list(reads, num_reads), written = list(writes, num_writes);
    auto kept = std::make_shared<CallbackContext>();
    kept->context = context;
    kept->release = release;
    auto body = [kept, operation] { treadle::c_api::check(operation(kept->context)); };
    try {
      its.push(std::move(body), read, written, priority);
    } catch (...) {
      kept->release = nullptr;
      throw;
    }
  });
}

treadle_status* treadle_engine_scratch(treadle_engine* engine, treadle_scratch** out) {
  return guarded([&] { require(out, "out") = new treadle_scratch{require(engine, "engine").engine.scratch()}; });
}

treadle_status* treadle_scratch_variable(const treadle_scratch* scratch, treadle_variable** out) {
  return guarded([&] { require(out, "out") = new treadle_variable{require(scratch, "scratch").scratch.variable()}; });
}

treadle_status* treadle_scratch_get(const treadle_scratch* scratch, size_t size_bytes, void** out) {
  return guarded([&] { require(out, "out") = require(scratch, "scratch").scratch.get(size_bytes); });
}

void treadle_scratch_release(treadle_scratch* scratch) { delete scratch; }

treadle_status* treadle_engine_random_stream(treadle_engine* engine, uint64_t seed, treadle_random_stream** out) {
  return guarded([&] { require(out, "out") = new treadle_random_stream{require(engine, "engine").engine.random_stream(seed)}; });
}

treadle_status* treadle_random_stream_variable(const treadle_random_stream* stream, treadle_variable** out) {
  return guarded([&] { require(out, "out") = new treadle_variable{require(stream, "stream").stream.variable()}; });
}

treadle_status* treadle_random_stream_uniform(const treadle_random_stream* stream, double* values, size_t count) {
  return guarded([&] {
    if (count) require(values, "values");
    require(stream, "stream").stream.uniform({values, count});
  });
}

treadle_status* treadle_random_stream_normal(const treadle_random_stream* stream, double* values, size_t count) {
  return guarded([&] {
    if (count) require(values, "values");
    require(stream, "stream").stream.normal({values, count});
  });
}

void treadle_random_stream_release(treadle_random_stream* stream) { delete stream; }

treadle_status* treadle_engine_wait_for(treadle_engine* engine, const treadle_variable* variable) {
  return guarded([&] { require(engine, "engine").engine.wait_for(require(variable, "variable").variable); });
}

treadle_status* treadle_engine_wait_all(treadle_engine* engine) {
  return guarded([&] { require(engine, "engine").engine.wait_all(); });
}

treadle_status* treadle_engine_num_pending(const treadle_engine* engine, size_t* out) {
  return guarded([&] { require(out, "out") = require(engine, "engine").engine.num_pending(); });
}

}  // extern "C"
