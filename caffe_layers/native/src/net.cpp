// Regions in nets that nobody has swapped: where CLGRAFT_CAFFE_REGIONS asks for them, each net that is made is marked first.
// The library must be preloaded: its Net::Init then takes the place of Caffe's, which it calls.
#include <dlfcn.h>
#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <string>

#include "caffe/net.hpp"
#include "library.hpp"
#include "planner.hpp"

#define NET_INIT "_ZN5caffe3NetIfE4InitERKNS_12NetParameterE"

namespace clgraft_caffe {

namespace {

// Writes marks into the layers of a net; those of the Python core's swap, for the types that are replaced.
void mark(caffe::NetParameter *net, const std::string &keep) {
    caffe::NetParameter light(*net);
    for (int i = 0; i < light.layer_size(); i++) light.mutable_layer(i)->clear_blobs();
    std::string text;
    google::protobuf::TextFormat::PrintToString(light, &text);
    std::string *marks = nullptr;
    for (const std::string &line : lines_of(ask("net " + replaced_types() + ' ' + keep + '\n' + text))) {
        if (line[0] == '@')
            marks = net->mutable_layer(std::atoi(line.c_str() + 1))->mutable_python_param()->mutable_param_str();
        else if (marks)
            *marks += line + '\n';
    }
}

}  // namespace

}  // namespace clgraft_caffe

extern "C" {

void clgraft_caffe_net_init(void *net, const caffe::NetParameter &parameters) __asm__(NET_INIT);

void clgraft_caffe_net_init(void *net, const caffe::NetParameter &parameters) {
    typedef void (*Init)(void *, const caffe::NetParameter &);
    static const Init own = reinterpret_cast<Init>(dlsym(RTLD_NEXT, NET_INIT));
    const char *regions = std::getenv("CLGRAFT_CAFFE_REGIONS");
    if (!regions || !*regions || clgraft_caffe::replaced_types().empty() || !clgraft_caffe::planner_runs()) {
        own(net, parameters);
        return;
    }
    caffe::NetParameter marked(parameters);
    try {
        clgraft_caffe::mark(&marked, regions);
    } catch (const clgraft_caffe::Refusal &reason) {
        LOG(WARNING) << "clgraft: no regions in net '" << parameters.name() << "': " << reason.what();
        marked = parameters;
    }
    own(net, marked);
}
}
