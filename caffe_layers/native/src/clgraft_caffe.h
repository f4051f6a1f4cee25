/* libclgraft_caffe.so: clgraft's layers in Caffe, without a change of Caffe.
 *
 * Loading the library adds the layer types OclConvolution, OclReLU, ... and, where CLGRAFT_CAFFE_REPLACE names some of
 * Caffe's own types (or `all`), lets clgraft serve those. */
#ifndef CLGRAFT_CAFFE_H
#define CLGRAFT_CAFFE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Lets clgraft serve Caffe's own types in layers that are made from now on: names between commas, or `all`; "" restores
 * Caffe's own. Returns 0, or -1 if a name is none that clgraft serves; nothing is changed then. Not while
 * another thread makes layers. */
int clgraft_caffe_replace(const char *types);

/* Caffe's types that clgraft serves, between commas. */
const char *clgraft_caffe_types(void);

/* How many layers this process has set up that clgraft serves, and how many that Caffe's own took over. */
void clgraft_caffe_served(unsigned long long counts[2]);

#ifdef __cplusplus
}
#endif
#endif
