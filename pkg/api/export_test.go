package api

// Describe lets the tests of a listening server hold its answers against the document.
var Describe = describe
