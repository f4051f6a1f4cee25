// Puts clgraft's layers into Caffe's registry when the library is loaded.
#include <dlfcn.h>
#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "clgraft_caffe.h"
#include "layer.hpp"
#include "library.hpp"

namespace clgraft_caffe {

namespace {

// Caffe's type and ours, and whether ours may take its place. The file is made from the tables of the Python layers.
struct Type {
    const char *caffe, *ours;
    bool replaces;
};
const Type types[] = {
#include "types.inc"
};

template <typename Dtype>
using Creators = typename Registry<Dtype>::CreatorRegistry;

// Caffe's own creators, as they were when the library was loaded.
template <typename Dtype>
Creators<Dtype> &own_creators() {
    static Creators<Dtype> &creators = *new Creators<Dtype>(Registry<Dtype>::Registry());
    return creators;
}

// Caffe's own type for one of ours.
std::string own_type(const std::string &type) {
    for (const Type &known : types)
        if (type == known.ours) return known.caffe;
    return type;
}

template <typename Dtype>
LayerPointer<Dtype> create(const caffe::LayerParameter &parameters) {
    caffe::LayerParameter own(parameters), inside;
    own.clear_blobs();
    own.set_type(own_type(parameters.type()));
    if (parameters.python_param().has_param_str()) {  // as `clgraft swap` writes a layer's parameters
        if (!google::protobuf::TextFormat::ParseFromString(parameters.python_param().param_str(), &inside))
            return LayerPointer<Dtype>(new ServedLayer<Dtype>(parameters, LayerPointer<Dtype>()));
        inside.clear_name();
        inside.clear_param();
        own.clear_python_param();
        own.MergeFrom(inside);
    }
    const auto creator = own_creators<Dtype>().find(own.type());
    const LayerPointer<Dtype> layer =
        creator == own_creators<Dtype>().end() ? LayerPointer<Dtype>() : creator->second(own);
    return LayerPointer<Dtype>(new ServedLayer<Dtype>(parameters, layer));
}

// Caffe's Python layers expect that their thread holds the interpreter's lock: they do not know
// that clgraft has started it.
template <typename Dtype>
LayerPointer<Dtype> create_python(const caffe::LayerParameter &parameters) {
    typedef int (*Question)();
    const Question initialized = reinterpret_cast<Question>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    const Question holds = reinterpret_cast<Question>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
    const Question take = reinterpret_cast<Question>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    if (initialized && holds && take && initialized() && !holds()) take();
    return own_creators<Dtype>()["Python"](parameters);
}

template <typename Dtype>
void add_types() {
    Creators<Dtype> &registry = Registry<Dtype>::Registry();
    own_creators<Dtype>();
    for (const Type &type : types) registry[type.ours] = create<Dtype>;
    if (registry.count("Python")) registry["Python"] = create_python<Dtype>;
}

template <typename Dtype>
void replace(const std::vector<std::string> &names) {
    Creators<Dtype> &registry = Registry<Dtype>::Registry();
    const Creators<Dtype> &own = own_creators<Dtype>();
    for (const Type &type : types) {
        const auto found = own.find(type.caffe);
        if (found == own.end())
            registry.erase(type.caffe);
        else
            registry[type.caffe] = found->second;
    }
    for (const std::string &name : names) registry[name] = create<Dtype>;
}

// Reads names between commas. Returns whether clgraft serves all of them.
bool read_names(const std::string &text, std::vector<std::string> *names) {
    std::string word;
    for (std::size_t i = 0; i <= text.size(); i++) {
        if (i < text.size() && text[i] != ',' && text[i] != ' ') {
            word += text[i];
            continue;
        }
        bool known = word.empty();
        for (const Type &type : types)
            if (type.replaces && (word == "all" || word == type.caffe)) {
                names->push_back(type.caffe);
                known = true;
            }
        if (!known) {
            LOG(ERROR) << "clgraft: got " << word << " among the types to replace, expected all or some of "
                       << clgraft_caffe_types();
            return false;
        }
        word.clear();
    }
    return true;
}

std::string &replaced_now() {
    static std::string &names = *new std::string();
    return names;
}

struct Loaded {
    Loaded() {
        add_types<float>();
        CLGRAFT_DOUBLE(add_types<double>();)
        const char *names = std::getenv("CLGRAFT_CAFFE_REPLACE");
        if (names) clgraft_caffe_replace(names);
    }
} loaded;

}  // namespace

const std::string &replaced_types() { return replaced_now(); }

}  // namespace clgraft_caffe

int clgraft_caffe_replace(const char *names) {
    std::vector<std::string> wanted;
    if (!names || !clgraft_caffe::read_names(names, &wanted)) return -1;
    clgraft_caffe::replace<float>(wanted);
    CLGRAFT_DOUBLE(clgraft_caffe::replace<double>(wanted);)
    std::string &now = clgraft_caffe::replaced_now();
    now.clear();
    for (const std::string &name : wanted) now += (now.empty() ? "" : ",") + name;
    return 0;
}

void clgraft_caffe_served(unsigned long long counts[2]) {
    counts[0] = clgraft_caffe::served().ours;
    counts[1] = clgraft_caffe::served().handed_over;
}

const char *clgraft_caffe_types(void) {
    static const std::string &all = *new std::string([] {
        std::string names;
        for (const clgraft_caffe::Type &type : clgraft_caffe::types)
            if (type.replaces) names += (names.empty() ? "" : ",") + std::string(type.caffe);
        return names;
    }());
    return all.c_str();
}
