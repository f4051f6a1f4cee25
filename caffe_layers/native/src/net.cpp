// Regions in nets that were not swapped: if CLGRAFT_CAFFE_REGIONS asks for them, each net that is made is marked first.
// A net that a layer makes for itself gets none: the layer reads and writes blobs inside of it, as Caffe's
// recurrent layers do with their unrolled nets. The library must be preloaded: its functions then take the place of
// Caffe's, which they call.
#include <dlfcn.h>
#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <string>

#include "caffe/net.hpp"
#include "library.hpp"
#include "planner.hpp"

#define NET_INIT "_ZN5caffe3NetIfE4InitERKNS_12NetParameterE"
#define RECURRENT_SET_UP "_ZN5caffe14RecurrentLayerIfE10LayerSetUpERKSt6vectorIPNS_4BlobIfEESaIS5_EES9_"

namespace clgraft_caffe {

namespace {

// Counts, in one thread, the nets and recurrent layers that are being set up.
struct SettingUp {
    SettingUp() { depth()++; }
    ~SettingUp() { depth()--; }
    static int &depth() {
        static thread_local int count = 0;
        return count;
    }
};

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

void clgraft_caffe_recurrent_set_up(void *layer, const void *bottom, const void *top) __asm__(RECURRENT_SET_UP);

// A recurrent layer may stand alone in a program, outside of any net.
void clgraft_caffe_recurrent_set_up(void *layer, const void *bottom, const void *top) {
    typedef void (*SetUp)(void *, const void *, const void *);
    static const SetUp own = reinterpret_cast<SetUp>(dlsym(RTLD_NEXT, RECURRENT_SET_UP));
    const clgraft_caffe::SettingUp guard;
    own(layer, bottom, top);
}

void clgraft_caffe_net_init(void *net, const caffe::NetParameter &parameters) {
    typedef void (*Init)(void *, const caffe::NetParameter &);
    static const Init own = reinterpret_cast<Init>(dlsym(RTLD_NEXT, NET_INIT));
    const bool inside = clgraft_caffe::SettingUp::depth() > 0;
    const clgraft_caffe::SettingUp guard;
    const char *regions = std::getenv("CLGRAFT_CAFFE_REGIONS");
    if (inside || !regions || !*regions || clgraft_caffe::replaced_types().empty() || !clgraft_caffe::planner_runs()) {
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
