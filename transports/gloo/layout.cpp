// Compiled when CMake configures; see CMakeLists.txt.

#include <gloo/config.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace tcp = gloo::transport::tcp;

static_assert(GLOO_VERSION == 500, "another version of Gloo");
static_assert(sizeof(void*) != 8 || (sizeof(tcp::Op) == 104 && sizeof(tcp::Op::preamble) == 48),
              "gloo::transport::tcp::Op has other members");
static_assert(sizeof(void*) != 8 || sizeof(tcp::Pair) == 896, "gloo::transport::tcp::Pair has other members");
static_assert(sizeof(void*) != 8 || sizeof(tcp::UnboundBuffer) == 224,
              "gloo::transport::tcp::UnboundBuffer has other members");
static_assert(sizeof(void*) != 8 || sizeof(tcp::Context) == 224, "gloo::transport::tcp::Context has other members");
static_assert(sizeof(void*) != 8 || sizeof(tcp::Device) == 328, "gloo::transport::tcp::Device has other members");

int main() {}
