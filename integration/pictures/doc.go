// Package pictures draws the documents' diagrams and plots as SVG files in docs/images. They follow the reader's light
// or dark color scheme. The plots show the figures in performance.json, which are those of docs/performance.md.
//
// The pictures in the Chinese documents are translations of the English ones, by a table of labels.
//
// To change a picture, edit its function and run make pictures. TestPictures fails if a file is out of date.
package pictures
