/*! The page of qkv. With it come:

@lit/reactive-element

BSD 3-Clause License

Copyright (c) 2017 Google LLC. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its
   contributors may be used to endorse or promote products derived from
   this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
d3-array

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-color

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-format

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-interpolate

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-path

Copyright 2015-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-scale

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-shape

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-time

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

d3-time-format

Copyright 2010-2026 Mike Bostock

Permission to use, copy, modify, and/or distribute this software for any purpose
with or without fee is hereby granted, provided that the above copyright notice
and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND
FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS
OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF
THIS SOFTWARE.

lit

BSD 3-Clause License

Copyright (c) 2017 Google LLC. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its
   contributors may be used to endorse or promote products derived from
   this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
lit-element

BSD 3-Clause License

Copyright (c) 2017 Google LLC. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its
   contributors may be used to endorse or promote products derived from
   this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
lit-html

BSD 3-Clause License

Copyright (c) 2017 Google LLC. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its
   contributors may be used to endorse or promote products derived from
   this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
*/
"use strict";(()=>{var Te=Object.defineProperty;var Me=Object.getOwnPropertyDescriptor;var v=(s,e,t,r)=>{for(var i=r>1?void 0:r?Me(e,t):e,o=s.length-1,a;o>=0;o--)(a=s[o])&&(i=(r?a(e,t,i):a(i))||i);return r&&i&&Te(e,t,i),i};var U=globalThis,L=U.ShadowRoot&&(U.ShadyCSS===void 0||U.ShadyCSS.nativeShadow)&&"adoptedStyleSheets"in Document.prototype&&"replace"in CSSStyleSheet.prototype,ae=Symbol(),oe=new WeakMap,N=class{constructor(e,t,r){if(this._$cssResult$=!0,r!==ae)throw Error("CSSResult is not constructable. Use `unsafeCSS` or `css` instead.");this.cssText=e,this.t=t}get styleSheet(){let e=this.o,t=this.t;if(L&&e===void 0){let r=t!==void 0&&t.length===1;r&&(e=oe.get(t)),e===void 0&&((this.o=e=new CSSStyleSheet).replaceSync(this.cssText),r&&oe.set(t,e))}return e}toString(){return this.cssText}},ne=s=>new N(typeof s=="string"?s:s+"",void 0,ae);var le=(s,e)=>{if(L)s.adoptedStyleSheets=e.map(t=>t instanceof CSSStyleSheet?t:t.styleSheet);else for(let t of e){let r=document.createElement("style"),i=U.litNonce;i!==void 0&&r.setAttribute("nonce",i),r.textContent=t.cssText,s.appendChild(r)}},V=L?s=>s:s=>s instanceof CSSStyleSheet?(e=>{let t="";for(let r of e.cssRules)t+=r.cssText;return ne(t)})(s):s;var{is:Oe,defineProperty:qe,getOwnPropertyDescriptor:Re,getOwnPropertyNames:He,getOwnPropertySymbols:Ue,getPrototypeOf:Ne}=Object,j=globalThis,de=j.trustedTypes,Le=de?de.emptyScript:"",je=j.reactiveElementPolyfillSupport,P=(s,e)=>s,T={toAttribute(s,e){switch(e){case Boolean:s=s?Le:null;break;case Object:case Array:s=s==null?s:JSON.stringify(s)}return s},fromAttribute(s,e){let t=s;switch(e){case Boolean:t=s!==null;break;case Number:t=s===null?null:Number(s);break;case Object:case Array:try{t=JSON.parse(s)}catch{t=null}}return t}},D=(s,e)=>!Oe(s,e),pe={attribute:!0,type:String,converter:T,reflect:!1,useDefault:!1,hasChanged:D};Symbol.metadata??=Symbol("metadata"),j.litPropertyMetadata??=new WeakMap;var x=class extends HTMLElement{static addInitializer(e){this._$Ei(),(this.l??=[]).push(e)}static get observedAttributes(){return this.finalize(),this._$Eh&&[...this._$Eh.keys()]}static createProperty(e,t=pe){if(t.state&&(t.attribute=!1),this._$Ei(),this.prototype.hasOwnProperty(e)&&((t=Object.create(t)).wrapped=!0),this.elementProperties.set(e,t),!t.noAccessor){let r=Symbol(),i=this.getPropertyDescriptor(e,r,t);i!==void 0&&qe(this.prototype,e,i)}}static getPropertyDescriptor(e,t,r){let{get:i,set:o}=Re(this.prototype,e)??{get(){return this[t]},set(a){this[t]=a}};return{get:i,set(a){let l=i?.call(this);o?.call(this,a),this.requestUpdate(e,l,r)},configurable:!0,enumerable:!0}}static getPropertyOptions(e){return this.elementProperties.get(e)??pe}static _$Ei(){if(this.hasOwnProperty(P("elementProperties")))return;let e=Ne(this);e.finalize(),e.l!==void 0&&(this.l=[...e.l]),this.elementProperties=new Map(e.elementProperties)}static finalize(){if(this.hasOwnProperty(P("finalized")))return;if(this.finalized=!0,this._$Ei(),this.hasOwnProperty(P("properties"))){let t=this.properties,r=[...He(t),...Ue(t)];for(let i of r)this.createProperty(i,t[i])}let e=this[Symbol.metadata];if(e!==null){let t=litPropertyMetadata.get(e);if(t!==void 0)for(let[r,i]of t)this.elementProperties.set(r,i)}this._$Eh=new Map;for(let[t,r]of this.elementProperties){let i=this._$Eu(t,r);i!==void 0&&this._$Eh.set(i,t)}this.elementStyles=this.finalizeStyles(this.styles)}static finalizeStyles(e){let t=[];if(Array.isArray(e)){let r=new Set(e.flat(1/0).reverse());for(let i of r)t.unshift(V(i))}else e!==void 0&&t.push(V(e));return t}static _$Eu(e,t){let r=t.attribute;return r===!1?void 0:typeof r=="string"?r:typeof e=="string"?e.toLowerCase():void 0}constructor(){super(),this._$Ep=void 0,this.isUpdatePending=!1,this.hasUpdated=!1,this._$Em=null,this._$Ev()}_$Ev(){this._$ES=new Promise(e=>this.enableUpdating=e),this._$AL=new Map,this._$E_(),this.requestUpdate(),this.constructor.l?.forEach(e=>e(this))}addController(e){(this._$EO??=new Set).add(e),this.renderRoot!==void 0&&this.isConnected&&e.hostConnected?.()}removeController(e){this._$EO?.delete(e)}_$E_(){let e=new Map,t=this.constructor.elementProperties;for(let r of t.keys())this.hasOwnProperty(r)&&(e.set(r,this[r]),delete this[r]);e.size>0&&(this._$Ep=e)}createRenderRoot(){let e=this.shadowRoot??this.attachShadow(this.constructor.shadowRootOptions);return le(e,this.constructor.elementStyles),e}connectedCallback(){this.renderRoot??=this.createRenderRoot(),this.enableUpdating(!0),this._$EO?.forEach(e=>e.hostConnected?.())}enableUpdating(e){}disconnectedCallback(){this._$EO?.forEach(e=>e.hostDisconnected?.())}attributeChangedCallback(e,t,r){this._$AK(e,r)}_$ET(e,t){let r=this.constructor.elementProperties.get(e),i=this.constructor._$Eu(e,r);if(i!==void 0&&r.reflect===!0){let o=(r.converter?.toAttribute!==void 0?r.converter:T).toAttribute(t,r.type);this._$Em=e,o==null?this.removeAttribute(i):this.setAttribute(i,o),this._$Em=null}}_$AK(e,t){let r=this.constructor,i=r._$Eh.get(e);if(i!==void 0&&this._$Em!==i){let o=r.getPropertyOptions(i),a=typeof o.converter=="function"?{fromAttribute:o.converter}:o.converter?.fromAttribute!==void 0?o.converter:T;this._$Em=i;let l=a.fromAttribute(t,o.type);this[i]=l??this._$Ej?.get(i)??l,this._$Em=null}}requestUpdate(e,t,r,i=!1,o){if(e!==void 0){let a=this.constructor;if(i===!1&&(o=this[e]),r??=a.getPropertyOptions(e),!((r.hasChanged??D)(o,t)||r.useDefault&&r.reflect&&o===this._$Ej?.get(e)&&!this.hasAttribute(a._$Eu(e,r))))return;this.C(e,t,r)}this.isUpdatePending===!1&&(this._$ES=this._$EP())}C(e,t,{useDefault:r,reflect:i,wrapped:o},a){r&&!(this._$Ej??=new Map).has(e)&&(this._$Ej.set(e,a??t??this[e]),o!==!0||a!==void 0)||(this._$AL.has(e)||(this.hasUpdated||r||(t=void 0),this._$AL.set(e,t)),i===!0&&this._$Em!==e&&(this._$Eq??=new Set).add(e))}async _$EP(){this.isUpdatePending=!0;try{await this._$ES}catch(t){Promise.reject(t)}let e=this.scheduleUpdate();return e!=null&&await e,!this.isUpdatePending}scheduleUpdate(){return this.performUpdate()}performUpdate(){if(!this.isUpdatePending)return;if(!this.hasUpdated){if(this.renderRoot??=this.createRenderRoot(),this._$Ep){for(let[i,o]of this._$Ep)this[i]=o;this._$Ep=void 0}let r=this.constructor.elementProperties;if(r.size>0)for(let[i,o]of r){let{wrapped:a}=o,l=this[i];a!==!0||this._$AL.has(i)||l===void 0||this.C(i,void 0,o,l)}}let e=!1,t=this._$AL;try{e=this.shouldUpdate(t),e?(this.willUpdate(t),this._$EO?.forEach(r=>r.hostUpdate?.()),this.update(t)):this._$EM()}catch(r){throw e=!1,this._$EM(),r}e&&this._$AE(t)}willUpdate(e){}_$AE(e){this._$EO?.forEach(t=>t.hostUpdated?.()),this.hasUpdated||(this.hasUpdated=!0,this.firstUpdated(e)),this.updated(e)}_$EM(){this._$AL=new Map,this.isUpdatePending=!1}get updateComplete(){return this.getUpdateComplete()}getUpdateComplete(){return this._$ES}shouldUpdate(e){return!0}update(e){this._$Eq&&=this._$Eq.forEach(t=>this._$ET(t,this[t])),this._$EM()}updated(e){}firstUpdated(e){}};x.elementStyles=[],x.shadowRootOptions={mode:"open"},x[P("elementProperties")]=new Map,x[P("finalized")]=new Map,je?.({ReactiveElement:x}),(j.reactiveElementVersions??=[]).push("2.1.2");var Q=globalThis,he=s=>s,I=Q.trustedTypes,ce=I?I.createPolicy("lit-html",{createHTML:s=>s}):void 0,ve="$lit$",w=`lit$${Math.random().toFixed(9).slice(2)}$`,ye="?"+w,De=`<${ye}>`,A=document,O=()=>A.createComment(""),q=s=>s===null||typeof s!="object"&&typeof s!="function",ee=Array.isArray,Ie=s=>ee(s)||typeof s?.[Symbol.iterator]=="function",J=`[ 	
\f\r]`,M=/<(?:(!--|\/[^a-zA-Z])|(\/?[a-zA-Z][^>\s]*)|(\/?$))/g,me=/-->/g,ue=/>/g,k=RegExp(`>|${J}(?:([^\\s"'>=/]+)(${J}*=${J}*(?:[^ 	
\f\r"'\`<>=]|("|')|))|$)`,"g"),ge=/'/g,fe=/"/g,xe=/^(?:script|style|textarea|title)$/i,te=s=>(e,...t)=>({_$litType$:s,strings:e,values:t}),c=te(1),rt=te(2),it=te(3),E=Symbol.for("lit-noChange"),d=Symbol.for("lit-nothing"),be=new WeakMap,_=A.createTreeWalker(A,129);function we(s,e){if(!ee(s)||!s.hasOwnProperty("raw"))throw Error("invalid template strings array");return ce!==void 0?ce.createHTML(e):e}var We=(s,e)=>{let t=s.length-1,r=[],i,o=e===2?"<svg>":e===3?"<math>":"",a=M;for(let l=0;l<t;l++){let n=s[l],h,m,p=-1,u=0;for(;u<n.length&&(a.lastIndex=u,m=a.exec(n),m!==null);)u=a.lastIndex,a===M?m[1]==="!--"?a=me:m[1]!==void 0?a=ue:m[2]!==void 0?(xe.test(m[2])&&(i=RegExp("</"+m[2],"g")),a=k):m[3]!==void 0&&(a=k):a===k?m[0]===">"?(a=i??M,p=-1):m[1]===void 0?p=-2:(p=a.lastIndex-m[2].length,h=m[1],a=m[3]===void 0?k:m[3]==='"'?fe:ge):a===fe||a===ge?a=k:a===me||a===ue?a=M:(a=k,i=void 0);let g=a===k&&s[l+1].startsWith("/>")?" ":"";o+=a===M?n+De:p>=0?(r.push(h),n.slice(0,p)+ve+n.slice(p)+w+g):n+w+(p===-2?l:g)}return[we(s,o+(s[t]||"<?>")+(e===2?"</svg>":e===3?"</math>":"")),r]},R=class s{constructor({strings:e,_$litType$:t},r){let i;this.parts=[];let o=0,a=0,l=e.length-1,n=this.parts,[h,m]=We(e,t);if(this.el=s.createElement(h,r),_.currentNode=this.el.content,t===2||t===3){let p=this.el.content.firstChild;p.replaceWith(...p.childNodes)}for(;(i=_.nextNode())!==null&&n.length<l;){if(i.nodeType===1){if(i.hasAttributes())for(let p of i.getAttributeNames())if(p.endsWith(ve)){let u=m[a++],g=i.getAttribute(p).split(w),b=/([.?@])?(.*)/.exec(u);n.push({type:1,index:o,name:b[2],strings:g,ctor:b[1]==="."?Y:b[1]==="?"?G:b[1]==="@"?Z:C}),i.removeAttribute(p)}else p.startsWith(w)&&(n.push({type:6,index:o}),i.removeAttribute(p));if(xe.test(i.tagName)){let p=i.textContent.split(w),u=p.length-1;if(u>0){i.textContent=I?I.emptyScript:"";for(let g=0;g<u;g++)i.append(p[g],O()),_.nextNode(),n.push({type:2,index:++o});i.append(p[u],O())}}}else if(i.nodeType===8)if(i.data===ye)n.push({type:2,index:o});else{let p=-1;for(;(p=i.data.indexOf(w,p+1))!==-1;)n.push({type:7,index:o}),p+=w.length-1}o++}}static createElement(e,t){let r=A.createElement("template");return r.innerHTML=e,r}};function S(s,e,t=s,r){if(e===E)return e;let i=r!==void 0?t._$Co?.[r]:t._$Cl,o=q(e)?void 0:e._$litDirective$;return i?.constructor!==o&&(i?._$AO?.(!1),o===void 0?i=void 0:(i=new o(s),i._$AT(s,t,r)),r!==void 0?(t._$Co??=[])[r]=i:t._$Cl=i),i!==void 0&&(e=S(s,i._$AS(s,e.values),i,r)),e}var F=class{constructor(e,t){this._$AV=[],this._$AN=void 0,this._$AD=e,this._$AM=t}get parentNode(){return this._$AM.parentNode}get _$AU(){return this._$AM._$AU}u(e){let{el:{content:t},parts:r}=this._$AD,i=(e?.creationScope??A).importNode(t,!0);_.currentNode=i;let o=_.nextNode(),a=0,l=0,n=r[0];for(;n!==void 0;){if(a===n.index){let h;n.type===2?h=new H(o,o.nextSibling,this,e):n.type===1?h=new n.ctor(o,n.name,n.strings,this,e):n.type===6&&(h=new X(o,this,e)),this._$AV.push(h),n=r[++l]}a!==n?.index&&(o=_.nextNode(),a++)}return _.currentNode=A,i}p(e){let t=0;for(let r of this._$AV)r!==void 0&&(r.strings!==void 0?(r._$AI(e,r,t),t+=r.strings.length-2):r._$AI(e[t])),t++}},H=class s{get _$AU(){return this._$AM?._$AU??this._$Cv}constructor(e,t,r,i){this.type=2,this._$AH=d,this._$AN=void 0,this._$AA=e,this._$AB=t,this._$AM=r,this.options=i,this._$Cv=i?.isConnected??!0}get parentNode(){let e=this._$AA.parentNode,t=this._$AM;return t!==void 0&&e?.nodeType===11&&(e=t.parentNode),e}get startNode(){return this._$AA}get endNode(){return this._$AB}_$AI(e,t=this){e=S(this,e,t),q(e)?e===d||e==null||e===""?(this._$AH!==d&&this._$AR(),this._$AH=d):e!==this._$AH&&e!==E&&this._(e):e._$litType$!==void 0?this.$(e):e.nodeType!==void 0?this.T(e):Ie(e)?this.k(e):this._(e)}O(e){return this._$AA.parentNode.insertBefore(e,this._$AB)}T(e){this._$AH!==e&&(this._$AR(),this._$AH=this.O(e))}_(e){this._$AH!==d&&q(this._$AH)?this._$AA.nextSibling.data=e:this.T(A.createTextNode(e)),this._$AH=e}$(e){let{values:t,_$litType$:r}=e,i=typeof r=="number"?this._$AC(e):(r.el===void 0&&(r.el=R.createElement(we(r.h,r.h[0]),this.options)),r);if(this._$AH?._$AD===i)this._$AH.p(t);else{let o=new F(i,this),a=o.u(this.options);o.p(t),this.T(a),this._$AH=o}}_$AC(e){let t=be.get(e.strings);return t===void 0&&be.set(e.strings,t=new R(e)),t}k(e){ee(this._$AH)||(this._$AH=[],this._$AR());let t=this._$AH,r,i=0;for(let o of e)i===t.length?t.push(r=new s(this.O(O()),this.O(O()),this,this.options)):r=t[i],r._$AI(o),i++;i<t.length&&(this._$AR(r&&r._$AB.nextSibling,i),t.length=i)}_$AR(e=this._$AA.nextSibling,t){for(this._$AP?.(!1,!0,t);e!==this._$AB;){let r=he(e).nextSibling;he(e).remove(),e=r}}setConnected(e){this._$AM===void 0&&(this._$Cv=e,this._$AP?.(e))}},C=class{get tagName(){return this.element.tagName}get _$AU(){return this._$AM._$AU}constructor(e,t,r,i,o){this.type=1,this._$AH=d,this._$AN=void 0,this.element=e,this.name=t,this._$AM=i,this.options=o,r.length>2||r[0]!==""||r[1]!==""?(this._$AH=Array(r.length-1).fill(new String),this.strings=r):this._$AH=d}_$AI(e,t=this,r,i){let o=this.strings,a=!1;if(o===void 0)e=S(this,e,t,0),a=!q(e)||e!==this._$AH&&e!==E,a&&(this._$AH=e);else{let l=e,n,h;for(e=o[0],n=0;n<o.length-1;n++)h=S(this,l[r+n],t,n),h===E&&(h=this._$AH[n]),a||=!q(h)||h!==this._$AH[n],h===d?e=d:e!==d&&(e+=(h??"")+o[n+1]),this._$AH[n]=h}a&&!i&&this.j(e)}j(e){e===d?this.element.removeAttribute(this.name):this.element.setAttribute(this.name,e??"")}},Y=class extends C{constructor(){super(...arguments),this.type=3}j(e){this.element[this.name]=e===d?void 0:e}},G=class extends C{constructor(){super(...arguments),this.type=4}j(e){this.element.toggleAttribute(this.name,!!e&&e!==d)}},Z=class extends C{constructor(e,t,r,i,o){super(e,t,r,i,o),this.type=5}_$AI(e,t=this){if((e=S(this,e,t,0)??d)===E)return;let r=this._$AH,i=e===d&&r!==d||e.capture!==r.capture||e.once!==r.once||e.passive!==r.passive,o=e!==d&&(r===d||i);i&&this.element.removeEventListener(this.name,this,r),o&&this.element.addEventListener(this.name,this,e),this._$AH=e}handleEvent(e){typeof this._$AH=="function"?this._$AH.call(this.options?.host??this.element,e):this._$AH.handleEvent(e)}},X=class{constructor(e,t,r){this.element=e,this.type=6,this._$AN=void 0,this._$AM=t,this.options=r}get _$AU(){return this._$AM._$AU}_$AI(e){S(this,e)}};var Ke=Q.litHtmlPolyfillSupport;Ke?.(R,H),(Q.litHtmlVersions??=[]).push("3.3.3");var $e=(s,e,t)=>{let r=t?.renderBefore??e,i=r._$litPart$;if(i===void 0){let o=t?.renderBefore??null;r._$litPart$=i=new H(e.insertBefore(O(),o),o,void 0,t??{})}return i._$AI(s),i};var re=globalThis,$=class extends x{constructor(){super(...arguments),this.renderOptions={host:this},this._$Do=void 0}createRenderRoot(){let e=super.createRenderRoot();return this.renderOptions.renderBefore??=e.firstChild,e}update(e){let t=this.render();this.hasUpdated||(this.renderOptions.isConnected=this.isConnected),super.update(e),this._$Do=$e(t,this.renderRoot,this.renderOptions)}connectedCallback(){super.connectedCallback(),this._$Do?.setConnected(!0)}disconnectedCallback(){super.disconnectedCallback(),this._$Do?.setConnected(!1)}render(){return E}};$._$litElement$=!0,$.finalized=!0,re.litElementHydrateSupport?.({LitElement:$});var Be=re.litElementPolyfillSupport;Be?.({LitElement:$});(re.litElementVersions??=[]).push("4.2.2");var Ve={attribute:!0,type:String,converter:T,reflect:!1,hasChanged:D},Je=(s=Ve,e,t)=>{let{kind:r,metadata:i}=t,o=globalThis.litPropertyMetadata.get(i);if(o===void 0&&globalThis.litPropertyMetadata.set(i,o=new Map),r==="setter"&&((s=Object.create(s)).wrapped=!0),o.set(t.name,s),r==="accessor"){let{name:a}=t;return{set(l){let n=e.get.call(this);e.set.call(this,l),this.requestUpdate(a,n,s,!0,l)},init(l){return l!==void 0&&this.C(a,void 0,s,l),l}}}if(r==="setter"){let{name:a}=t;return function(l){let n=this[a];e.call(this,l),this.requestUpdate(a,n,s,!0,l)}}throw Error("Unsupported decorator location: "+r)};function ke(s){return(e,t)=>typeof t=="object"?Je(s,e,t):((r,i,o)=>{let a=i.hasOwnProperty(o);return i.constructor.createProperty(o,r),a?Object.getOwnPropertyDescriptor(i,o):void 0})(s,e,t)}function y(s){return ke({...s,state:!0,attribute:!1})}var z=class extends Error{};async function K(s,e,t,r){let i={"content-type":"application/json","accept-language":e},o=await fetch(s,t===void 0?{headers:i,signal:r}:{method:"POST",headers:i,body:JSON.stringify(t),signal:r});if(o.ok)return o;let a=await o.json().catch(()=>null);throw new z(a?.error?.message??`HTTP ${o.status}`)}async function _e(s){return(await(await K("/v1/models",s)).json()).data}async function Ae(s,e){await K("/login",e,{key:s})}function ie(s){return s.kind==="encoder-decoder"?"translate":s.loaded&&!s.writes?"none":s.loaded&&!s.chat?"text":"chat"}async function Ee(s,e,t,r,i,o,a){let l=t==="chat",n={model:s,stream:!0,keep:!0,...r,...l?{messages:e,logprobs:!0}:{prompt:e.at(-1).content,logprobs:0}},h=await K(l?"/v1/chat/completions":"/v1/completions",i,n,o),m={id:`${h.headers.get("x-request-id")}-0`,pieces:[],finish:null},p=0,u=0;for await(let g of Fe(h)){if(g.error)throw new z(g.error.message);let b=g.choices[0];if(!b)continue;let B=(l?b.delta.content:b.text)??"",Pe=(l?b.logprobs?.content?.length:b.logprobs?.tokens?.length)??0;B&&m.pieces.push({text:B,token:u}),p+=Pe,B&&(u=p),m.finish=b.finish_reason??m.finish,a(m)}}async function Se(s,e,t,r){let i=e.filter(n=>n.trim()),a=await(await K("/v1/translate",t,{model:s,text:i,keep:!0},r)).json(),l=-1;return e.map(n=>{if(!n.trim())return{id:"",pieces:[{text:n,token:0}],finish:"stop"};let h=a.translations[++l],m=h.pieces.map((u,g)=>({text:u,token:g})).filter(u=>u.text),p=m.map(u=>u.text).join("")===h.text;return{id:`${a.id}-${l}`,pieces:p?m:[{text:h.text,token:0}],finish:h.finish_reason}})}async function*Fe(s){let e=s.body.pipeThrough(new TextDecoderStream).getReader(),t="";for(;;){let{value:r,done:i}=await e.read();if(i)return;let o=(t+r).split(`

`);t=o.pop();for(let a of o){if(a==="data: [DONE]")return;a.startsWith("data: ")&&(yield JSON.parse(a.slice(6)))}}}var Ye={language:["English","中文"],"language.about":["Switch to English","换成中文"],model:["模型","Model"],new:["新对话","New chat"],options:["选项","Options"],temperature:["温度（0 取最可能的）","Temperature (0 takes the likeliest)"],length:["最多写几个词元","Most tokens to write"],system:["系统提示（可不填）","System prompt (optional)"],send:["发送","Send"],write:["续写","Continue"],translate:["翻译","Translate"],stop:["停止","Stop"],copy:["复制","Copy"],copied:["已复制","Copied"],edit:["修改","Edit"],again:["重新生成","Again"],you:["你","You"],"hint.chat":["说点什么…","Say something…"],"hint.text":["写一个开头，模型接着写…","Write a beginning, and the model goes on…"],"hint.translate":["要翻译的文字，一行一句…","Text to translate, a sentence a line…"],"begin.chat":["和模型聊天。点答案里的任何一个词，看看模型为什么这样说。","Chat with the model. Click any word of an answer to see why the model said it."],"begin.text":["这个模型没有对话模板：它接着你的开头写。点任何一个词，看看它为什么这样写。","This model has no chat template: it goes on from your beginning. Click any word to see why it wrote that."],"begin.translate":["译文里的每个词都可以点：看看它从原文的哪个词来。","Every word of a translation can be clicked: see which words it came from."],inside:["看这个词的内部","Look inside this word"],waiting:["正在等…","Waiting…"],"length.end":["到了长度上限，停在这里","stopped at the length limit"],lost:["连不上服务器：运行 qkv serve 的终端还开着吗？","The server does not answer: is the terminal with qkv serve still open?"],none:["这里没有能写字的模型；向量请用 /v1/embeddings。","No model here writes text; for vectors use /v1/embeddings."],key:["API 密钥","API key"],"key.about":["这个服务器要密钥。","This server needs a key."],enter:["进入","Enter"]};function Ce(s,e,t=""){return Ye[e][s==="zh"?0:1].replace("{0}",t)}var f=class extends ${constructor(){super(...arguments);this.language=se("lang")==="en"||se("lang")==="zh"?se("lang"):navigator.language.startsWith("zh")?"zh":"en";this.models=[];this.model="";this.turns=[];this.draft="";this.trouble="";this.busy=null;this.locked=!1;this.copied=null;this.temperature=.7;this.length=512;this.system="";this.t=(t,r="")=>Ce(this.language,t,r);this.turn=()=>{this.language=this.language==="zh"?"en":"zh",sessionStorage.setItem("lang",this.language)}}createRenderRoot(){return this}connectedCallback(){super.connectedCallback(),this.locked=this.hasAttribute("locked"),this.locked||this.begin()}async begin(){await this.guard(async()=>{let t=(await _e(this.language)).filter(r=>ie(r)!=="none");this.models=t,this.model=t.some(r=>r.id===this.model)?this.model:t[0]?.id??"",t.length||(this.trouble=this.t("none"))})}get kind(){let t=this.models.find(r=>r.id===this.model);return t?ie(t):"chat"}async guard(t){this.trouble="";try{await t()}catch(r){if(r instanceof DOMException&&r.name==="AbortError")return;this.trouble=r instanceof z?r.message:this.t("lost")}}async send(){let t=this.draft;!t.trim()||this.busy||(this.draft="",await this.answer({asked:t,answers:[],trouble:""}))}async answer(t){let r=this.kind,i=this.turns.filter(o=>o!==t);this.turns=[...i,t],this.busy=new AbortController,this.follow(),await this.guard(async()=>{let{signal:o}=this.busy;r==="translate"?t.answers=await Se(this.model,t.asked.split(`
`),this.language,o):await Ee(this.model,this.conversation(i,t.asked),r,{temperature:this.temperature,max_tokens:this.length},this.language,o,a=>{t.answers=[a],this.turns=[...this.turns],this.follow()})}),t.trouble=this.trouble,this.trouble="",this.busy=null,this.turns=[...this.turns],this.models.find(o=>o.id===this.model)?.loaded||this.begin(),this.follow(),await this.updateComplete,this.querySelector("textarea")?.focus()}repeat(t){this.turns=this.turns.filter(r=>r!==t),this.answer({asked:t.asked,answers:[],trouble:""})}conversation(t,r){let i=t.filter(o=>!o.trouble).flatMap(o=>[{role:"user",content:o.asked},{role:"assistant",content:o.answers.map(ze).join(`
`)}]);return[...this.system?[{role:"system",content:this.system}]:[],...i,{role:"user",content:r}]}follow(){let t=document.scrollingElement;t.scrollHeight-t.scrollTop-t.clientHeight>160&&this.busy&&this.turns.at(-1)?.answers.length||this.updateComplete.then(()=>t.scrollTo({top:t.scrollHeight}))}edit(t){this.busy?.abort(),this.turns=this.turns.slice(0,this.turns.indexOf(t)),this.draft=t.asked,this.updateComplete.then(()=>this.querySelector("textarea")?.focus())}async copy(t){await navigator.clipboard.writeText(t.map(ze).join(`
`)),this.copied=t[0]??null,setTimeout(()=>this.copied=null,1500)}async enter(t){t.preventDefault();let r=this.querySelector("input[name=key]");await this.guard(async()=>{await Ae(r.value,this.language),this.locked=!1,await this.begin()})}typed(t){t.key==="Enter"&&!t.isComposing&&(this.kind==="translate"?t.ctrlKey||t.metaKey:!t.shiftKey)&&(t.preventDefault(),this.send())}willUpdate(){document.documentElement.lang=this.language==="zh"?"zh-CN":"en"}render(){return c`<header class="top chat-top"><div class="brand"><h1>qkv</h1>
        ${this.models.length?c`<label class="pick"><span class="hidden">${this.t("model")}</span><select .value=${this.model} ?disabled=${this.busy!==null} @change=${t=>this.choose(t.target.value)}>
          ${this.models.map(t=>c`<option value=${t.id} ?selected=${t.id===this.model}>${t.id}</option>`)}</select></label>`:d}
        ${this.turns.length?c`<button type="button" class="quiet" ?disabled=${this.busy!==null} @click=${()=>this.turns=[]}>${this.t("new")}</button>`:d}
        <button type="button" class="quiet language" lang=${this.language==="zh"?"en":"zh"} aria-label=${this.t("language.about")} @click=${this.turn}>${this.t("language")}</button></div></header>
      ${this.locked?this.door():c`<main class="talk" aria-live="polite">${this.turns.length?this.turns.map((t,r)=>this.exchange(t,r===this.turns.length-1)):c`<p class="about">${this.t(`begin.${this.kind==="none"?"chat":this.kind}`)}</p>`}
        ${this.trouble?c`<p class="trouble" role="alert">${this.trouble}</p>`:d}</main>
      ${this.models.length?this.box():d}`}`}choose(t){let r=this.kind;this.model=t,this.kind!==r&&(this.turns=[])}door(){return c`<main class="talk"><form class="door" @submit=${t=>this.enter(t)}><p>${this.t("key.about")}</p>
      <label>${this.t("key")} <input name="key" type="password" autocomplete="current-password" required></label>
      <button class="go">${this.t("enter")}</button>${this.trouble?c`<p class="trouble" role="alert">${this.trouble}</p>`:d}</form></main>`}exchange(t,r){let i=r&&this.busy&&!t.answers.length;return c`<section class="exchange">
      <div class="asked"><h2 class="hidden">${this.t("you")}</h2><p>${t.asked}</p>
        <button type="button" class="quiet" @click=${()=>this.edit(t)}>${this.t("edit")}</button></div>
      <div class="answered" ?busy=${i}><h2 class="hidden">${this.model}</h2>${i?c`<p class="about">${this.t("waiting")}</p>`:d}
        ${t.answers.map(o=>c`<p class="answer">${this.kind==="text"?c`<span class="given">${t.asked}</span>`:d}${o.pieces.map(a=>this.piece(o,a))}</p>`)}
        ${t.answers.some(o=>o.finish==="length")?c`<p class="note">${this.t("length.end")}</p>`:d}
        ${t.trouble?c`<p class="trouble" role="alert">${t.trouble}</p>`:d}
        ${r&&this.busy?d:c`<div class="acts">
          ${t.answers.length?c`<button type="button" class="quiet" @click=${()=>this.copy(t.answers)}>${this.t(this.copied&&this.copied===t.answers[0]?"copied":"copy")}</button>`:d}
          ${r?c`<button type="button" class="quiet" @click=${()=>this.repeat(t)}>${this.t("again")}</button>`:d}</div>`}
      </div></section>`}piece(t,r){let i=r.text,o=i.trim();if(!o||!t.id)return c`${i}`;let[a,l]=[i.slice(0,i.indexOf(o)),i.slice(i.indexOf(o)+o.length)];return c`${a}<a class="piece" target="_blank" rel="noopener" title=${this.t("inside")} href=${`/inside?answer=${t.id}&token=${r.token}&lang=${this.language}`}>${o}</a>${l}`}box(){let{kind:t}=this,r=t==="translate"?"translate":t==="text"?"write":"send";return c`<form class="box" aria-label=${this.t(r)} @submit=${i=>{i.preventDefault(),this.send()}}>
      <textarea rows="1" aria-label=${this.t(`hint.${t==="none"?"chat":t}`)} placeholder=${this.t(`hint.${t==="none"?"chat":t}`)} .value=${this.draft}
        @input=${i=>this.draft=i.target.value} @keydown=${i=>this.typed(i)}></textarea>
      ${this.busy?c`<button type="button" class="go stop" @click=${()=>this.busy?.abort()}>${this.t("stop")}</button>`:c`<button class="go" ?disabled=${!this.draft.trim()}>${this.t(r)}</button>`}
      ${t==="translate"?d:c`<details class="more"><summary>${this.t("options")}</summary><div>
        <label>${this.t("temperature")} <input type="number" min="0" max="2" step="0.1" .value=${String(this.temperature)} @change=${i=>this.temperature=Number(i.target.value)}></label>
        <label>${this.t("length")} <input type="number" min="1" max="4096" .value=${String(this.length)} @change=${i=>this.length=Number(i.target.value)}></label>
        ${t==="chat"?c`<label class="wide">${this.t("system")} <input .value=${this.system} @change=${i=>this.system=i.target.value}></label>`:d}
      </div></details>`}</form>`}};v([y()],f.prototype,"language",2),v([y()],f.prototype,"models",2),v([y()],f.prototype,"model",2),v([y()],f.prototype,"turns",2),v([y()],f.prototype,"draft",2),v([y()],f.prototype,"trouble",2),v([y()],f.prototype,"busy",2),v([y()],f.prototype,"locked",2),v([y()],f.prototype,"copied",2);var ze=s=>s.pieces.map(e=>e.text).join("");function se(s){return sessionStorage.getItem(s)??""}customElements.define("q-chat",f);})();
