// The context that a caller passes with its callbacks.
#pragma once

namespace treadle::c_api {

/// Keeps the context that a caller passed with its callbacks. `release` is called when the last function that uses it is destroyed.
struct CallbackContext {
  void* context = nullptr;
  void (*release)(void* context) = nullptr;  ///< set once nothing can fail any more; may stay null

  CallbackContext() = default;
  CallbackContext(const CallbackContext&) = delete;
  CallbackContext& operator=(const CallbackContext&) = delete;
  ~CallbackContext() {
    if (release) release(context);
  }
};

}  // namespace treadle::c_api
