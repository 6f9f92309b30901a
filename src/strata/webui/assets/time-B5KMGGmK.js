<<<<<<<< HEAD:src/strata/webui/assets/time-CbgqzCDW.js
import{$ as e,Ht as t,b as n,p as r}from"./index-DFr4EdRn.js";var i=t();function a({at:t,ago:a=!1}){let o=r(t,e());return(0,i.jsx)(`time`,{title:n(t),children:a&&o!==`now`?`${o} ago`:o})}export{a as t};
========
import{$ as e,Ht as t,b as n,p as r}from"./index-BF9KfD18.js";var i=t();function a({at:t,ago:a=!1}){let o=r(t,e());return(0,i.jsx)(`time`,{title:n(t),children:a&&o!==`now`?`${o} ago`:o})}export{a as t};
>>>>>>>> 402ab34 (hang: collect the stacks of all workers before a hang is declared; why hang, strata stacks):src/strata/webui/assets/time-B5KMGGmK.js
