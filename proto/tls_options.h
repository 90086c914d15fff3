// Which files make the control plane travel over TLS; all empty: it does not.
//
// **Thread safety**: plain data.
#ifndef VERBENA_PROTO_TLS_OPTIONS_H_
#define VERBENA_PROTO_TLS_OPTIONS_H_

#include <string>

namespace verbena {

// PEM files. They are looked at again for every new connection (a client: for every call), so
// replacing them needs no restart; replaced ones that cannot be used are left aside, and the ones
// before stay.
struct TlsOptions {
  std::string ca = {};    // certificates of the authorities that peers are believed by
  std::string cert = {};  // this process's certificate, then those up to its authority
  std::string key = {};   // its private key, without a pass phrase
};

}  // namespace verbena

#endif  // VERBENA_PROTO_TLS_OPTIONS_H_
