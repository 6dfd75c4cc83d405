// The context that a caller passes with its callbacks.
#pragma once

namespace treadle::c_api {

/// Owns the context that a caller passed with its callbacks. `release` is called when the last callback that uses the context is destroyed.
struct CallbackContext {
  void* context = nullptr;
  void (*release)(void* context) = nullptr;  ///< set when registration can no longer fail; may be null

  CallbackContext() = default;
  CallbackContext(const CallbackContext&) = delete;
  CallbackContext& operator=(const CallbackContext&) = delete;
  ~CallbackContext() {
    if (release) release(context);
  }
};

}  // namespace treadle::c_api
